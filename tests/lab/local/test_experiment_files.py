"""The experiment files can be run as they are, and a file may build on another file, its base."""

import re
from collections import defaultdict
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import pytest
import torch

from protofleet import methods
from protofleet.cli.main import main
from protofleet.coordinator.method_settings import OF_ALL_METHODS
from protofleet.deploy.fleet.device.coordinator_settings import load_settings
from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.limits import DeviceLimits, device_epochs
from protofleet.lab.local.experiment import (
    Experiment,
    device_settings,
    experiment_of_table,
    read_experiment,
)
from protofleet.lab.local.grid import Axis, plan_grid
from protofleet.lab.local.sweep_file import Wish, planned
from protofleet.methods.contract.catalog import names
from protofleet.methods.contract.first_weights import FirstWeights
from protofleet.methods.contract.plan import Plan
from protofleet.methods.nets import catalog as nets
from protofleet.methods.parts.local import LocalHyper
from protofleet.methods.parts.statistics import StatisticsHyper
from protofleet.protocol.settings.reader import SettingsError, line_of, tomllib
from protofleet.protocol.transport.address import BrokerAddress

FOLDER = Path(__file__).parents[3] / "experiments"
FILES = sorted(path for path in FOLDER.rglob("*.toml") if path.parent.name not in ("base", "sweeps"))
BASES = sorted(FOLDER.rglob("base/*.toml"))
FROZEN = tuple(
    FOLDER / name for name in ("digits-frozen", "digits-frozen-head", "digits-last-layer", "fashion-frozen")
)
FREEZES = ("efficientnet_lite0",)
PRIVATE = FOLDER / "digits-private"
PAPERS = sorted({path.parent for path in FILES} - {FOLDER, FOLDER / "digits", PRIVATE, *FROZEN})
SWEEPS = [
    pytest.param(path, marks=pytest.mark.slow)
    if path.stem.startswith(("frozen-", "last-layer-", "fashion-")) or number % 6
    else path
    for number, path in enumerate(sorted((FOLDER / "sweeps").iterdir()))
]


@pytest.fixture(autouse=True, scope="module")
def networks_are_built_once():
    """Build each network once, as nineteen files have the same eight networks and GoogLeNet takes a second.

    A network that a plan freezes is built each time, because a network can be frozen only once.
    """
    build, once = nets.build, cache(nets.build)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            nets,
            "build",
            lambda name, *rest, **more: (build if name in FREEZES else once)(name, *rest, **more),
        )
        yield


@pytest.fixture(autouse=True, scope="module")
def files_of_weights_are_not_read():
    """Read no file of first weights, because a package that is not installed here contains the weights."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FirstWeights, "load_into", lambda self, model: None)
        yield


@cache
def read(path: Path) -> Experiment:
    return read_experiment(path, [])


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_each_experiment_file_has_a_comment_the_name_of_its_run_and_a_valid_model(path):
    experiment = read(path)  # it decodes and checks every device's settings
    plan = experiment.plan
    with torch.device("meta"):
        assert plan.model().classes == experiment.classes
    own = path.stem.startswith(path.parent.name) or path.parent == FOLDER
    assert experiment.name == (path.stem if own else f"{path.parent.name}-{path.stem}")
    assert path.read_text().startswith("# ")


@pytest.mark.slow
def test_every_experiment_is_far_below_the_default_limits_of_a_device():
    """docs/security-limits.md describes the memory that a batch takes in addition to the weights."""
    sizes = {}
    for path in FILES:
        experiment = read(path)
        stated = experiment.plan
        assert device_epochs(stated.settings()) <= DeviceLimits().epochs / 10, path
        for name in set(experiment.devices.networks) or {None}:
            own = name and replace(stated.network, name=name)
            key = (stated.method, str(stated.input_shape), stated.classes, str(own or stated.network))
            if key not in sizes:
                with torch.device("meta"):
                    sizes[key] = sum(value.nbytes for value in stated.device_model(own).state_dict().values())
            assert 4 * sizes[key] < 2 << 30 and 2 * sizes[key] < DeviceLimits().disk_bytes / 4, path


def test_no_two_experiment_files_have_the_same_run_name():
    names = [read(path).name for path in FILES]
    assert len(set(names)) == len(names)


def test_the_quorum_of_each_experiment_is_its_whole_cohort():
    """A [policy] without a quorum would continue with the first answer."""
    for path in FILES:
        experiment = read(path)
        asked = experiment.effective_policy.cohort or len(experiment.shards)
        assert experiment.effective_policy.quorum == asked, path


def root_of(path: Path) -> Path:
    """Follow the chain of bases and return the last file, which has no base."""
    base = tomllib.loads(path.read_text()).get("base")
    return root_of((path.parent / base).resolve()) if base else path


@pytest.mark.parametrize("folder", PAPERS, ids=lambda folder: folder.name)
def test_rows_of_a_table_differ_only_in_the_method_and_its_network(folder):
    rows = defaultdict(list)
    for path in folder.glob("*.toml"):
        table = root_of(path) if path.stem.endswith("-digits") else path.stem.rpartition("-")[0]
        rows[table].append(read(path))
    for table, experiments in rows.items():
        shared = [(data_without_validation(e), e.rounds, e.seed, e.effective_policy) for e in experiments]
        assert all(one == shared[0] for one in shared), table
        assert len({e.devices.networks for e in experiments} - {()}) <= 1, table


def data_without_validation(experiment: Experiment) -> object:
    """Return the shards of an experiment, without validation samples if its method is FedGA.

    FedGA learns from validation samples. A paper that trains on all samples gives the other methods none.
    """
    if experiment.plan.method != "fedga":
        return experiment.shards
    return {name: replace(data, validation=0.0) for name, data in experiment.shards.items()}


def test_every_method_has_a_file_on_the_digits_that_need_no_download():
    baselines = {path.stem for path in (FOLDER / "digits").iterdir()}
    assert baselines | {folder.name for folder in PAPERS} == set(names())
    for path in (FOLDER / "digits").iterdir():
        assert (
            read(path).plan.method == path.stem
            and read(path).shards == read(FOLDER / "digits/fedavg.toml").shards
        )


@pytest.mark.parametrize("folder", PAPERS, ids=lambda folder: folder.name)
def test_every_paper_has_runs_on_the_digits_that_need_no_download(folder):
    found = {path.stem.removesuffix("-digits"): read(path) for path in folder.glob("*-digits.toml")}
    assert folder.name in found
    for experiment in found.values():
        assert (experiment.data.source, experiment.data.root) == ("digits", "")
        assert {data.domain for data in experiment.shards.values()} in ({""}, SIX)


SIX = {"mnist", "optdigits", "mfeat", "synth", "mnistm", "street"}


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_each_sweep_is_a_grid_of_an_experiment_with_validation_samples(path):
    # The network of frozen features takes long to build, so only two draws of the images are planned.
    frozen = path.stem.startswith(("frozen-", "last-layer-", "fashion-"))
    grid, _ = planned(path, Wish([Axis("data.seed", ("0", "1"))] if frozen else []))
    assert path.read_text().startswith("# ") and grid.name == path.stem and len(grid.points) > 2
    assert all(data.validation > 0 for trial in grid.trials for data in trial.shards.values())


def test_every_base_file_is_used():
    used = {path.parent / tomllib.loads(path.read_text()).get("base", "") for path in [*FILES, *BASES]}
    assert set(BASES) <= {path.resolve() for path in used}


@pytest.mark.parametrize("folder", FROZEN, ids=lambda folder: folder.name)
def test_rows_of_frozen_features_differ_only_in_method_codec_and_rounds(folder):
    rows = [read(path) for path in folder.iterdir()]
    shared = [(one.shards, one.seed, one.network, one.init, one.freeze, one.effective_policy) for one in rows]
    assert all(one == shared[0] for one in shared)
    assert {one.rounds for one in rows if issubclass(one.plan.load().Hyper, StatisticsHyper)} <= {1}


@pytest.mark.parametrize("method", ["fedavg", "fedgram"])
def test_files_of_private_runs_differ_only_in_noise_and_masked_sums(method):
    plain, local, shared = (read(PRIVATE / f"{method}{end}.toml") for end in ("", "-local", "-shared"))
    assert local.plan == replace(plain.plan, dp=local.plan.dp) and local.plan.dp is not None
    assert shared.plan == replace(local.plan, secagg=shared.plan.secagg) and shared.plan.secagg is not None
    assert plain.shards == local.shards == shared.shards


# Bases of experiment files


@pytest.fixture
def write(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


def test_tables_are_merged_key_by_key_and_other_values_are_replaced(write):
    write("base/common.toml", 'rounds = 9\n[method]\nname = "fedprox"\nmu = 0.5\nlr = 0.1\n[data]\nsize = 16')
    write("base/two.toml", 'base = "common.toml"\nseed = 3\n[devices]\nclients = { mnist = 1, synth = 1 }')
    row = write("row.toml", 'base = "base/two.toml"\nname = "row"\nseed = 4\n[method]\nmu = 0.2\nepochs = 1')
    found = read_experiment(row, [])
    assert found == Experiment(
        "row", 9, {"name": "fedprox", "mu": 0.2, "lr": 0.1, "epochs": 1}, seed=4,
        data=found.data, devices=found.devices,
    )  # fmt: skip
    assert found.data.size == 16
    assert found.devices.clients == {"mnist": 1, "synth": 1}


def test_the_path_of_a_base_is_relative_to_the_file_that_names_it(write, monkeypatch):
    path = write("deep/row.toml", 'base = "../whole.toml"')
    write("whole.toml", 'name = "whole"\nrounds = 1\nmethod = { name = "fedavg" }')
    monkeypatch.chdir(path.parent.parent)
    assert read_experiment(Path("deep/row.toml"), []) == read_experiment(Path("whole.toml"), [])


def test_settings_of_the_command_line_replace_those_of_the_files(write):
    write("whole.toml", 'name = "whole"\nrounds = 1\nmethod = { name = "fedprox", mu = 1.0 }')
    row = write("row.toml", 'base = "whole.toml"\n[method]\nmu = 2.0')
    assert read_experiment(row, ["method.mu=3.0"]).method["mu"] == 3.0


# Settings of one method


@pytest.fixture
def moon(write):
    """Write a base that names MOON, with a setting of MOON alone (mu) and two of all methods (lr, epochs)."""
    text = 'name = "base"\nrounds = 1\n\n[method]\nname = "moon"\nlr = 0.05\nepochs = 2\nmu = 5.0\n'
    return write("moon.toml", text)


def test_a_setting_that_was_written_for_one_method_is_refused_for_another(write, moon):
    child = write("prox.toml", 'base = "moon.toml"\n[method]\nname = "fedprox"\n')
    with pytest.raises(SettingsError) as refused:
        read_experiment(child, [])
    said = str(refused.value)
    assert f"{moon}:8: method.mu is set for moon, and {child}:3 names fedprox" in said
    with pytest.raises(
        SettingsError, match=r"moon.toml:8: method.mu is set for moon, and .* with --set names"
    ):
        read_experiment(moon, ["method.name=fedprox"])
    with pytest.raises(SettingsError, match=r"moon.toml:8: method.mu is set for moon"):
        experiment_of_table({"base": str(moon), "method": {"name": "fedprox"}})
    with pytest.raises(SettingsError, match=r"moon.toml:8: .*with --grid names fedprox"):
        plan_grid(moon, [Axis("method.name", ("fedprox",))], [1], ["data.validation=0.1"])


def test_a_setting_that_is_set_for_the_new_method_is_accepted(write, moon):
    child = write("prox.toml", 'base = "moon.toml"\n[method]\nname = "fedprox"\nmu = 0.5')
    taken = {"name": "fedprox", "lr": 0.05, "epochs": 2, "mu": 0.5}
    assert read_experiment(child, []).method == taken
    assert read_experiment(moon, ["method.mu=0.5", "method.name=fedprox"]).method == taken
    same = write("same.toml", 'base = "moon.toml"\n[method]\nname = "moon"\ntau = 0.3')
    assert read_experiment(same, []).method == {
        "name": "moon",
        "lr": 0.05,
        "epochs": 2,
        "mu": 5.0,
        "tau": 0.3,
    }


def test_the_error_for_a_setting_that_the_new_method_lacks_names_a_possible_fix(write, moon):
    child = write("prox.toml", 'base = "moon.toml"\n[method]\nname = "fedprox"\nmu = 0.5\n')
    moon.write_text(f"{moon.read_text()}tau = 0.3\n")
    with pytest.raises(SettingsError, match=r"moon.toml:9: method.tau is set for moon") as refused:
        read_experiment(child, [])
    assert str(refused.value).endswith("takes no settings of another method; take a base without it")


def test_another_file_of_the_same_plug_in_keeps_the_settings(write):
    plugin = Path(methods.__path__[0]) / "fedprox.py"
    for name in ("own.py", "other.py"):
        write(name, plugin.read_text())
    text = 'name = "a"\nrounds = 1\n[method]\nname = "own"\nfile = "own.py"\nmu = 0.5\n'
    base = write("own.toml", text)
    assert read_experiment(base, [f"method.file={base.parent / 'other.py'}"]).method["mu"] == 0.5
    with pytest.raises(SettingsError, match=r"nofile.py"):
        read_experiment(base, ["method.file=nofile.py"])


def test_settings_that_all_methods_have_are_kept_for_another_method(write, tmp_path):
    plain = write("plain.toml", 'name = "a"\nrounds = 1\nmethod = { name = "fedavg", lr = 0.05, epochs = 2 }')
    assert read_experiment(plain, ["method.name=fedproto"]).method == {
        "name": "fedproto", "lr": 0.05, "epochs": 2
    }  # fmt: skip
    assert {f.name for f in fields(LocalHyper)} == OF_ALL_METHODS


def test_a_method_that_trains_nothing_ignores_training_settings_of_an_earlier_method(write):
    base = write("base.toml", 'name = "a"\nrounds = 1\nmethod = { name = "fedavg", lr = 0.05, epochs = 2 }')
    child = write("child.toml", 'base = "base.toml"\nmethod.name = "fedncm"\n')
    for found in (read_experiment(base, ["method.name=fedncm"]), read_experiment(child, [])):
        assert found.method == {"name": "fedncm"} and found.plan.hyper == {}
    for file, changes in ((child, ["method.lr=0.1"]), (base, ["method.name=fedncm", "method.lr=0.1"])):
        with pytest.raises(SettingsError, match="method.lr is not a setting of fedncm"):
            read_experiment(file, changes)
    both = write("both.toml", 'name = "a"\nrounds = 1\n[method]\nname = "fedncm"\nlr = 0.05\n')
    with pytest.raises(SettingsError, match="both.toml:5: method.lr is not a setting of fedncm"):
        read_experiment(both, [])


def test_a_coordinator_file_ignores_training_settings_if_the_method_trains_nothing(write):
    text = 'name = "a"\nrounds = 1\nclasses = 10\nmethod = { name = "fedavg", lr = 0.05 }'
    changed = load_settings(write("c.toml", text), "", ["method.name=fedncm"]).settings
    assert changed.plan().hyper == {}


def test_a_setting_of_a_middle_file_belongs_to_the_method_of_its_base(write, moon):
    write("between.toml", 'base = "moon.toml"\n\n[method]\nmu = 1.0\n')
    child = write("prox.toml", 'base = "between.toml"\nmethod.name = "fedprox"\n')
    with pytest.raises(
        SettingsError, match=r"between.toml:4: method.mu is set for moon, and .*prox.toml:2 names"
    ):
        read_experiment(child, [])


def test_a_setting_of_one_method_in_a_base_without_a_method_name_is_refused(write):
    write("common.toml", 'name = "a"\nrounds = 1\n[method]\nlr = 0.05\nmu = 5.0\n')
    child = write("prox.toml", 'base = "common.toml"\n[method]\nname = "fedprox"\n')
    with pytest.raises(SettingsError, match=r"common.toml:5: method.mu belongs to one method, and this file"):
        read_experiment(child, [])


def test_the_error_for_an_unknown_setting_names_the_line_of_the_base(write):
    base = write("base.toml", 'name = "a"\nrounds = 1\n\n[method]\nname = "fedprox"\nmuu = 0.5\n')
    child = write("child.toml", 'base = "base.toml"\nseed = 3')
    with pytest.raises(SettingsError, match="did you mean mu") as refused:
        read_experiment(child, [])
    assert f"{base}:6: method.muu is not a setting of fedprox" in str(refused.value)


def test_a_plug_in_file_of_a_base_is_refused_under_the_name_of_a_built_in_method(write):
    plugin = Path(methods.__path__[0]) / "fedprox.py"
    write("own.py", plugin.read_text())
    base = write("own.toml", 'name = "a"\nrounds = 1\n[method]\nfile = "own.py"\n')
    with pytest.raises(
        SettingsError, match=r"own.toml:4: method.file is .*own.py', but .* names moon, which is a method"
    ):
        read_experiment(base, ["method.name=moon"])
    assert read_experiment(base, ["method.name=moon", "method.file=''"]).plan.method == "moon"


def test_a_setting_for_one_method_in_a_coordinator_file_is_refused_for_another(write):
    file = write(
        "coordinator.toml",
        'name = "a"\nrounds = 1\nclasses = 10\n[method]\nname = "moon"\nmu = 5.0\nlr = 0.05',
    )
    with pytest.raises(SettingsError, match=r"coordinator.toml:6: method.mu is set for moon"):
        load_settings(file, "", ["method.name=fedprox"])
    changed = load_settings(file, "", ["method.name=fedprox", "method.mu=0.5"]).settings
    assert changed.method == {"name": "fedprox", "mu": 0.5, "lr": 0.05}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[method]\nmu = 1", 2),
        ("a = 1\n\n# mu = 0\nmethod.mu = 1\n", 4),
        ('method = { name = "a", mu = 1 }', 1),
        ('a = """\n[method]\nmu = 2\n"""\n[method]\n"mu" = 1', 6),
        ("\ufeff[method]\r\nb = [\r\n1,\r\n]\r\nmu = [\r\n1,\r\n]", 5),
        ("[method]\ntau = 1", 0),
        ("", 0),
    ],
)
def test_line_of_returns_the_line_where_the_entry_of_a_key_begins(text, line):
    assert line_of(text, ("method", "mu")) == line


def test_bases_that_form_a_cycle_are_refused(write):
    first = write("first.toml", 'base = "second.toml"')
    write("second.toml", 'base = "./first.toml"')
    with pytest.raises(SettingsError, match="is the next file: first.toml -> second.toml -> first.toml"):
        read_experiment(first, [])


@pytest.mark.parametrize("base", ["7", '"none.toml"', '""', '["a.toml"]', "{ a = 1 }"])
def test_a_base_that_is_not_a_file_is_refused(write, base):
    path = write("row.toml", f"base = {base}\nrounds = 1")
    with pytest.raises(SettingsError, match=r"row.toml: base is .*, it must be the path of a TOML file"):
        read_experiment(path, [])


def test_the_error_for_a_broken_base_names_the_base(write):
    path = write("row.toml", 'base = "broken.toml"')
    write("broken.toml", "rounds = ")
    with pytest.raises(SettingsError, match=r"broken.toml is not TOML"):
        read_experiment(path, [])


def test_the_command_data_accepts_a_file_with_a_base(capsys):
    few = ["--set", "data.samples=20", "--set", "data.test_samples=5"]
    assert main(["data", str(FOLDER / "fedlsa" / "ablation-no-sep-digits.toml"), *few]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(SIX)


# Values that are computed once


def test_the_shards_and_the_plan_of_an_experiment_are_computed_once(write, monkeypatch):
    path = write(
        "one.toml", 'name = "one"\nrounds = 1\nmethod = { name = "fedavg" }\ndevices = { count = 20 }'
    )
    shards, plans = counted(monkeypatch, DataSettings), counted(monkeypatch, Plan)
    experiment = read_experiment(path, [])
    own = 1  # one for the file's [data] table
    assert len(shards) == 20 + own
    stated = len(plans)  # one to check the coordinator's settings, one that they give
    assert stated == 2
    for name in experiment.shards:
        device_settings(experiment, name, BrokerAddress(), Path("runs"))
    assert experiment.plan.variant.reports == experiment.reports
    assert experiment.effective_policy.quorum == len(experiment.devices_by_domain["digits"]) == 20
    assert (len(shards), len(plans)) == (20 + own, stated)


def counted(monkeypatch, cls):
    made = []
    init = cls.__init__
    monkeypatch.setattr(cls, "__init__", lambda self, *a, **k: (made.append(self), init(self, *a, **k))[1])
    return made


SELECTED = """
name = "s"
rounds = 1
method = { name = "fedproto" }
network = { name = "cnn23", feature_size = 32, embedding_size = 16 }
devices = { count = 4, networks = ["cnn23", "mlp"] }
"""


def test_a_run_has_only_the_selected_devices_and_their_data_do_not_change(
    tmp_path,
):
    def read(text):
        (tmp_path / "s.toml").write_text(f"{SELECTED}[select]\n{text}\n")
        return read_experiment(tmp_path / "s.toml", [])

    found = read('names = ["device-2", "device-4"]')
    assert {name: (data.part, data.parts) for name, data in found.shards.items()} == {
        "device-2": (1, 4), "device-4": (3, 4),
    }  # fmt: skip
    assert {network.name for network in found.networks.values()} == {"mlp"}
    assert [*read('without = ["device-1"]\nmost = 2\ndomains = ["digits"]').shards] == [
        "device-2",
        "device-3",
    ]
    for text, words in {
        'names = ["device-11"]': "did you mean device-1?",
        'domains = ["digit"]': "no device is left; did you mean digits?",
        'groups = ["hall"]': "select.groups needs a coordinator that conducts submitted runs",
    }.items():
        with pytest.raises(SettingsError, match=re.escape(words)):
            read(text)
