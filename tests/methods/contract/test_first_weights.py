"""Tests of runs that begin with the weights of a file, and of runs with a frozen backbone."""

import hashlib
import json
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from protofleet.cli.main import main
from protofleet.coordinator.config import CoordinatorSettings
from protofleet.lab.local.experiment import Experiment
from protofleet.lab.simulation.federation import Simulation
from protofleet.methods.contract.catalog import load
from protofleet.methods.contract.cost import parameters
from protofleet.methods.contract.first_weights import FirstWeights, weights_folder
from protofleet.methods.contract.plan import Network, Plan, read_plan
from protofleet.methods.nets.weights_file import WeightsFileError, load_from, read_weights, write_weights
from protofleet.methods.parts.state import snapshot
from protofleet.methods.served.scaling import Input
from protofleet.methods.served.served import served
from protofleet.protocol.settings.reader import SettingsError, decode, parse_toml
from tests.methods.contract.test_cost import LOCAL, METHODS
from tests.methods.served.trained import NAMES, SIDE, device_0, plan_of
from tests.methods.tiny import Shard, play, same
from tests.support.few_methods import few
from tests.support.small_federation import POLICY, shard, simulation

NETWORK = Network("cnn_bn", feature_size=32)  # A network without a projector.
# As safetensors 0.8.0 writes {"a": int16 [2], "b": float32 [1, 2]}.
GOLDEN = (
    b'p\x00\x00\x00\x00\x00\x00\x00{"b":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},'
    b'"a":{"dtype":"I16","shape":[2],"data_offsets":[8,12]}}  \x00\x00\x00?\x00\x00\x80\xc0\xfe\xff\x03\x00'
)


def plan(method="fedavg", **more):
    return Plan(method, 3, 1, 1, 16, NETWORK, **more)


def other_weights():
    """Return weights of the same network from another run."""
    return replace(plan(), seed=77).model().state_dict()


@pytest.fixture(autouse=True)
def data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PROTOFLEET_DATA", str(tmp_path / "data"))


@pytest.fixture
def kept(tmp_path, capsys):
    """Return a function that writes weights to a file and returns the `init` settings that `weights` prints."""

    def keep(weights, name="backbone.safetensors"):
        write_weights(tmp_path / name, weights)
        assert main(["weights", str(tmp_path / name)]) == 0
        return decode(FirstWeights, parse_toml(capsys.readouterr().out.encode(), "printed")["init"])

    return keep


def start_of(key, weights):
    return {name: value for name, value in weights.items() if name.startswith(key)}


# The file


def test_a_file_of_safetensors_can_be_read(tmp_path):
    (tmp_path / "w").write_bytes(GOLDEN)
    found = read_weights(tmp_path / "w")
    assert same(found, {"a": torch.tensor([-2, 3], dtype=torch.int16), "b": torch.tensor([[0.5, -4.0]])})


def test_written_weights_are_read_again_in_every_type_and_shape(tmp_path):
    dtypes = torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool
    weights = {str(d): torch.arange(6).reshape(2, 3).to(d) for d in dtypes}
    weights |= {"none": torch.zeros(0, 4), "one": torch.tensor(5)}
    write_weights(tmp_path / "w", weights)
    assert same(read_weights(tmp_path / "w"), weights)


def file_with(**change):
    row = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **change}
    text = json.dumps({"w": row}).encode()
    return struct.pack("<Q", len(text)) + text + bytes(8)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "it has 0 bytes"),
        (b"PK\x03\x04 a zip file of torch.save", "its table would have"),
        (struct.pack("<Q", 4) + b"nope", "not JSON"),
        (struct.pack("<Q", 2) + b"[]", "not a JSON object"),
        (file_with(dtype="F8"), "which does not fit the file"),
        (file_with(shape=[3]), "which does not fit"),
        (file_with(shape=[-2]), "which does not fit"),
        (file_with(shape=["x"]), "which does not fit"),
        (file_with(data_offsets=[8, 16]), "which does not fit"),
        (file_with(data_offsets=[-8, 0]), "which does not fit"),
        (file_with(data_offsets=[0]), "which does not fit"),
        (file_with(data_offsets=[0.0, 8.0]), "which does not fit"),
    ],
)
def test_a_file_that_is_not_safetensors_is_refused_in_one_line(data, message, tmp_path, capsys):
    path = tmp_path / "w.safetensors"
    path.write_bytes(data)
    with pytest.raises(WeightsFileError, match=message):
        read_weights(path)
    assert main(["weights", str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def file_of(table, numbers=b""):
    text = table if isinstance(table, bytes) else json.dumps(table).encode()
    return struct.pack("<Q", len(text)) + text + numbers


def row(first, last):
    return {"dtype": "U8", "shape": [last - first], "data_offsets": [first, last]}


ODD_TABLES = {
    "shared": (file_of({f"w{i}": row(0, 8) for i in range(600)}, bytes(8)), "shares bytes with w0"),
    "within": (
        file_of({"a": row(0, 8), "b": row(4, 8)}, bytes(8)),
        "b begins at byte 4 and shares bytes with a",
    ),
    "gap": (
        file_of({"a": row(0, 2), "b": row(4, 8)}, bytes(8)),
        "b begins at byte 4 and leaves a gap after a",
    ),
    "rest": (file_of({"a": row(0, 2)}, bytes(8)), "describes 2 bytes of numbers, but the file has 8"),
    "twice": (file_of(b'{"a": 1, "a": 2}'), "has the tensor 'a' twice"),
    "deep": (file_of(b"[" * 90_000), "nested more than 3 deep"),
    "deep object": (file_of(b'{"a":' * 90_000), "not JSON"),
    "many": (file_of(b'{"a": [' + b"1," * 90_000 + b"1]}"), "more values than tensors need"),
    "codes": (file_of({"\x1b[31mred": row(0, 0)}), r"called '.x1b.31mred'"),
    "nameless": (file_of({"": row(0, 0)}), "1 to 256 printable characters"),
    "huge": (file_of({"a": {**row(0, 0), "shape": [10**400]}}), "does not fit"),
    "digits": (file_of(b'{"a": ' + b"9" * 9000 + b"}"), "not JSON"),
    "product": (file_of({"a": {**row(0, 0), "shape": [2**32, 2**32, 0, 2**63]}}), "does not fit"),
    "axes": (file_of({"a": {**row(0, 1), "shape": [1] * 9}}, bytes(1)), "does not fit"),
    "row": (file_of({"a": [1, 2]}), "does not fit"),
    "type": (file_of({"a": {**row(0, 0), "dtype": ["U8"]}}), "does not fit"),
    "text": (file_of({"a": {**row(0, 0), "shape": ""}}), "does not fit"),
    "codes in a row": (file_of({"a": {"dtype": "\x1b[31m"}}), r"is {'dtype': '.x1b.31m'}"),
}


@pytest.mark.parametrize("name", ODD_TABLES)
def test_a_file_with_a_malformed_table_is_refused_in_one_printable_line(name, tmp_path, capsys):
    """Earlier 600 tensors of one region took 5.2 GB, and other tables ended in tracebacks."""
    data, message = ODD_TABLES[name]
    path = tmp_path / "w.safetensors"
    path.write_bytes(data)
    with pytest.raises(WeightsFileError, match=message):
        read_weights(path)
    assert main(["weights", str(path)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and err.strip().isprintable()


READS = """
import resource, sys
from pathlib import Path
from protofleet.methods.nets.weights_file import WeightsFileError, read_weights
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    read_weights(Path(sys.argv[1]))
except WeightsFileError:
    print(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))
"""


@pytest.mark.slow
def test_a_file_with_600_tensors_of_one_region_takes_the_memory_of_one_tensor(tmp_path):
    size = 8 << 20
    path = tmp_path / "w.safetensors"
    path.write_bytes(file_of({f"w{i}": row(0, size) for i in range(600)}, bytes(size)))
    done = subprocess.run(
        [sys.executable, "-c", READS, str(path)], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 3 * size  # 8.8 MB were measured here.


# A network


@pytest.mark.parametrize("method", sorted(NAMES))
def test_a_run_can_begin_with_the_weights_of_an_exported_model(method, kept):
    """Earlier `rule.head.*` of an export was refused, because a network has `head.*`."""
    model, card = served(device_0(method), Input((3, SIDE, SIDE))), plan_of(method)
    (init,) = [kept({name: value for name, value in model.state_dict().items() if "scaling" not in name})]
    began = replace(card, init=init).model().state_dict()
    exported = model.state_dict()
    for name, value in began.items():
        if name.startswith("features.") or (name.startswith("projector.") and name in exported):
            assert torch.equal(value, exported[name])
    heads = {
        name: f"rule.{name}" for name in began if name.startswith("head.") and f"rule.{name}" in exported
    }
    assert all(torch.equal(began[name], exported[other]) for name, other in heads.items())
    drawn = card.model().state_dict()
    left = [name for name in began if name.startswith("head.") and name not in heads]
    assert all(torch.equal(began[name], drawn[name]) for name in left)
    own_heads = ("fednh", "fedpall")  # Their heads differ from the head of the network.
    assert heads or method in own_heads or not [name for name in exported if name.startswith("rule.head.")]


def test_a_file_may_lack_projector_and_head_which_keep_their_initial_weights():
    model, before = plan().model(), plan().model().state_dict()
    given = start_of("features.", other_weights())
    load_from(model, given)
    assert same(start_of("features.", model.state_dict()), given)
    assert same(start_of("head.", model.state_dict()), start_of("head.", before))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda w: {**w, "fc.weight": torch.zeros(1)},
            "it contains fc.weight, but the network has only features",
        ),
        (
            lambda w: start_of("head.", w),
            "it does not contain features.0.weight, .* and .* more of the network's backbone",
        ),
        (
            lambda w: {**w, "head.bias": torch.zeros(9)},
            r"head.bias has the shape \(9,\), but the network needs \(3,\); leave this",
        ),
        (lambda w: {**w, "head.bias": torch.full((3,), float("nan"))}, "head.bias is not finite"),
    ],
    ids=["strange", "missing", "shape", "not finite"],
)
def test_a_tensor_that_does_not_fit_is_named_and_nothing_is_loaded(change, message):
    model = plan().model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(WeightsFileError, match=message):
        load_from(model, change(other_weights()))
    assert same(model.state_dict(), before)


# A run


def test_coordinator_and_device_begin_with_the_weights_of_the_file(kept):
    weights = other_weights()
    made = plan(init=kept(weights))
    server, client = made.server_half(), made.client_half(shard(0).train, "device-0")
    assert same(server.model.state_dict(), weights) and same(client.model.state_dict(), weights)
    assert not same(plan().model().state_dict(), weights)


def test_a_plan_with_first_weights_has_another_hash_than_a_plan_without_them(kept):
    made = plan(init=kept(other_weights()), freeze="backbone")
    assert read_plan(made.encode()) == made
    assert (
        len({made.digest, replace(made, freeze=None).digest, replace(made, init=None).digest, plan().digest})
        == 4
    )
    assert not {"init", "freeze"} & json.loads(plan().encode()).keys()


def test_the_page_names_each_method_that_does_not_use_all_weights_of_the_file(kept):
    network = Network("cnn_bn", feature_size=32, embedding_size=16)
    weights = replace(plan(), seed=77, network=network).model().state_dict()
    named, unused = kept(weights), {}
    for name in METHODS:
        made = replace(plan(name, init=named), network=network)
        found = made.client_half(shard(0).train, "device-0").model.state_dict()
        for key, value in weights.items():
            if key not in found or found[key].shape != value.shape or not torch.equal(found[key], value):
                unused.setdefault(name, set()).add(key.partition(".")[0])
    assert unused == {"fednh": {"head"}, "fedpall": {"head"}, "fedsr": {"projector"}}
    page = (Path(__file__).parents[3] / "docs" / "fine-tuning.md").read_text(encoding="utf-8")
    assert all(title in page for title in ("FedNH", "FedPall", "FedSR"))


def test_a_missing_file_is_refused_with_the_searched_path_and_the_command():
    made = plan(init=FirstWeights("resnet.safetensors@sha256:" + "ab" * 32))
    with pytest.raises(SettingsError) as found:
        made.client_half(shard(0).train, "device-0")
    assert str(weights_folder() / ("ab" * 32 + ".safetensors")) in str(found.value)
    words = "bring resnet.safetensors to this machine and run `protofleet weights resnet.safetensors`"
    assert words in str(found.value)


def test_other_weights_are_refused_with_their_hash_and_the_hash_of_the_run(kept):
    other, wanted = kept(other_weights()).sha256, "ab" * 32
    with pytest.raises(SettingsError) as found:
        plan(init=FirstWeights(f"resnet.safetensors@sha256:{wanted}")).client_half(shard(0).train, "device-0")
    assert f"{wanted}.safetensors (it has {other})" in str(found.value)


def test_a_file_that_was_changed_afterwards_is_not_used(kept):
    named = kept(other_weights())
    path = weights_folder() / f"{named.sha256}.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    with pytest.raises(SettingsError, match="is damaged: its hash is [0-9a-f]{64}, not the hash in"):
        plan(init=named).model()


def test_weights_of_another_network_are_refused_before_a_run_begins(kept):
    named = kept({"conv1.weight": torch.zeros(2)}, "other.safetensors")
    table = {"name": "a", "rounds": 1, "method": {"name": "fedavg"}, "init": {"file": named.file}}
    with pytest.raises(
        SettingsError, match="first weights, other.safetensors, cannot be used: it contains conv1.weight"
    ):
        decode(Experiment, table)


@pytest.mark.parametrize(
    "file", ["w.safetensors", "w@sha256:12", "@sha256:" + "a" * 64, "w@sha256:" + "G" * 64]
)
def test_a_file_name_without_a_hash_is_refused_with_the_command_that_prints_it(file):
    with pytest.raises(
        SettingsError, match="it must be a name and a hash.*`protofleet weights FILE` prints the name"
    ):
        decode(FirstWeights, {"file": file}, "init")


def test_the_settings_of_a_coordinator_can_contain_init_and_freeze(kept):
    named = kept(other_weights())
    table = {
        "name": "a", "rounds": 1, "classes": 3, "method": {"name": "fedavg"}, "init": {"file": named.file},
        "freeze": "backbone",
    }  # fmt: skip
    made = decode(CoordinatorSettings, table).plan()
    assert (made.init, made.freeze) == (named, "backbone")
    with pytest.raises(SettingsError, match='freeze is "head", but must be one of "backbone"'):
        decode(CoordinatorSettings, {**table, "freeze": "head"})


def test_a_file_name_with_a_folder_names_the_same_file():
    digest = hashlib.sha256(b"").hexdigest()
    named = FirstWeights(f"/some/where/w.safetensors@sha256:{digest}")
    assert (named.name, named.sha256) == ("w.safetensors", digest)


# A frozen backbone


@pytest.mark.slow
def test_the_program_of_the_page_writes_a_file_with_which_a_run_can_begin(tmp_path, kept):
    """The test makes no download: it uses untrained weights in place of those of ImageNet."""
    page = (Path(__file__).parents[3] / "docs" / "fine-tuning.md").read_text(encoding="utf-8")
    program = page.partition("```python\n")[2].partition("```")[0]
    assert 'weights="IMAGENET1K_V1"' in program
    (tmp_path / "program.py").write_text(program.replace('weights="IMAGENET1K_V1"', ""))
    subprocess.run([sys.executable, "program.py"], cwd=tmp_path, check=True, timeout=60)
    weights = read_weights(tmp_path / "resnet18.safetensors")
    made = Plan("fedavg", 10, 1, size=32, network=Network("resnet18"), init=kept(weights), freeze="backbone")
    model = made.model()
    assert same(start_of("features.", model.state_dict()), weights)
    assert parameters(model) == 5130 and "5,130 numbers" in page
    assert sum(p.numel() for p in model.parameters()) == 11_181_642 and "11,181,642" in page


def test_a_run_with_a_frozen_backbone_sends_only_the_head(tmp_path):
    common = simulation(tmp_path / "common", "fedavg")
    chosen = replace(common.plan, freeze="backbone", network=NETWORK)
    run = Simulation(chosen, common.shards, common.policy, tmp_path / "frozen").run()
    left = {"head.weight": 3 * 32, "head.bias": 3}
    for agent in run.agents.values():
        model = agent.run.job.half.model
        assert parameters(model) == sum(left.values())
        assert agent.link.meter.payload["up", "weights"] == 4 * POLICY.rounds * sum(left.values())
        first = run.plan.model().state_dict()
        assert same(start_of("features.", model.state_dict()), start_of("features.", first))
        assert not same(start_of("head.", model.state_dict()), start_of("head.", first))


@pytest.mark.parametrize(
    "name, hyper",
    few([*((name, {}) for name in METHODS), ("fednh", {"fixed_scale": True, "final_fit": True})], 4),
)
def test_each_method_leaves_a_frozen_backbone_unchanged_in_a_round(name, hyper):
    known = load(name).Hyper.__dataclass_fields__
    short = {key: value for key, value in LOCAL.items() if key in known}
    made = Plan(name, 3, 1, 1, 16, NETWORK, {**short, **hyper}, freeze="backbone")
    parts = {f"device-{i}": shard(i, n=12) for i in range(2)}
    clients = {
        device: made.client_half(large(part.train), device, validation=large(part.validation))
        for device, part in parts.items()
    }
    server, first = made.server_half(), start_of("features.", made.model().state_dict())
    play(server, clients, 1)
    for client in clients.values():
        client.receive(snapshot(server.payload()))
        client.after_last_round()
        assert same(start_of("features.", client.model.state_dict()), first)
        assert client.predict(client.data.x).isfinite().all()


def large(part):
    """Return the shard with images of 16 x 16 pixels, the size that the network takes."""
    return Shard(F.interpolate(part.x, size=16), part.y)


def test_batch_norms_of_a_frozen_backbone_use_and_keep_their_running_statistics():
    model = plan(freeze="backbone").model().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    assert torch.equal(model.embed(x)[:2], model.embed(x[:2])) or torch.allclose(
        model.embed(x)[:2], model.embed(x[:2])
    )
    assert same(model.state_dict(), before) and not model.features.training and model.head.training
