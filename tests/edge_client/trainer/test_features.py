"""Tests of the features of a frozen backbone, which a device computes once and stores."""

from __future__ import annotations

import os
import re
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.data.shard import TensorSamples
from protofleet.edge_client.trainer.features import PIECE, StoredFeatures, computed, with_features
from protofleet.edge_client.trainer.job import LocalJob
from protofleet.edge_client.trainer.local import LocalTrainer
from protofleet.lab.local.experiment import Experiment, device_settings
from protofleet.lab.simulation.federation import Simulation
from protofleet.methods.contract.base import Member
from protofleet.methods.contract.bridge import to_numpy
from protofleet.methods.contract.plan import Network, Plan
from protofleet.methods.parts.state import snapshot
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.transport.address import BrokerAddress
from protofleet.protocol.wire.names import NAME
from tests.methods.contract.test_cost import LOCAL, METHODS
from tests.methods.tiny import same
from tests.support.small_federation import POLICY, shard, simulation

NETWORK = Network("cnn_bn", feature_size=32)
SAMPLES = ("fml", "fedkd")  # They train a mutual network on the samples.
QUICK = ("fedavg", "perfedavg")


def large(part):
    return TensorSamples(F.interpolate(part.x, size=16), part.y)


def data_of(i=0):
    small = shard(i)
    return replace(
        small, train=large(small.train), validation=large(small.validation), test=large(small.test)
    )


def plan_of(method="fedavg", seed=1, network=NETWORK):
    known = Plan(method, 3, 1, seed, 16).load().Hyper.__dataclass_fields__
    short = {key: value for key, value in LOCAL.items() if key in known}
    return Plan(method, 3, 2, seed, 16, network, short, freeze="backbone")


def store_in(folder, most=1 << 20, network="cnn_bn", disk=None):
    return StoredFeatures(folder, most, network, disk or Disk(False))


def job_of(plan, features=None, data=None):
    data = data or data_of()
    half = plan.client_half(data.train, "device-0", validation=data.validation)
    return LocalJob(half, data, plan.variant.reports, features=features)


def first_phase(plan, job):
    """Run the first phase of the first round; return the arrays that a device sends, and its metrics."""
    server = plan.server_half()
    server.begin(1, [Member("a", len(job.half.data.y))])
    ask = next(server.round())
    payload, metrics = job.run(ask.phase, 1, to_numpy(snapshot(ask.payload)))
    return {name: torch.from_numpy(value.copy()) for name, value in payload.items()}, metrics


def seen_by(half):
    """Return a list to which each pass through the backbone adds its number of images."""
    seen = []
    layer = next(module for module in half.model.features.modules() if isinstance(module, nn.Conv2d))
    layer.register_forward_hook(lambda module, given, result: seen.append(len(result)))
    return seen


def count(data):
    return sum(len(part.y) for part in (data.train, data.validation, data.test))


def files(folder):
    return sorted(folder.glob("*.safetensors"))


def test_a_job_has_the_same_bits_without_a_store_and_with_new_or_stored_features(tmp_path):
    plan = plan_of()
    without = first_phase(plan, job_of(plan))
    storing = job_of(plan, store_in(tmp_path))
    new = first_phase(plan, storing)
    first_phase(plan, storing)  # A later task stores nothing more.
    job = job_of(plan, store_in(tmp_path))
    seen = seen_by(job.half)
    read = first_phase(plan, job)
    assert not seen and len(files(tmp_path)) == 3
    for payload, metrics in (new, read):
        assert same(payload, without[0]) and metrics == without[1]


def test_a_device_runs_its_backbone_once_for_all_rounds(tmp_path):
    common = simulation(tmp_path / "common", "fedavg")
    shards = {f"device-{i}": data_of(i) for i in range(3)}
    plan = replace(common.plan, size=16, network=NETWORK, freeze="backbone")
    run, seen = Simulation(plan, shards, POLICY, tmp_path / "run"), {}
    build = run.build

    def watched(device, chosen, data):
        half = build(device, chosen, data)
        seen[device] = seen_by(half)
        return half

    run.build = watched
    run.run()
    assert POLICY.rounds > 1
    assert {device: sum(many) for device, many in seen.items()} == {d: count(s) for d, s in shards.items()}


@pytest.mark.parametrize(
    "method", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in METHODS]
)
def test_each_method_sends_nearly_the_same_update_from_features_as_from_samples(method):
    plan = plan_of(method)
    job, data = job_of(plan), data_of()
    found, metrics = first_phase(plan, job)
    raw = job_of(plan)
    raw.half.uses_samples = True
    expected, others = first_phase(plan, raw)
    assert found.keys() == expected.keys() and metrics.keys() == others.keys()
    assert all(torch.allclose(found[name], expected[name], atol=1e-4) for name in found)
    assert (job.half.data.x.dim() == 2) == (method not in SAMPLES) and raw.half.data.x.dim() == 4
    scores = job.half.predict(data.test.x)
    assert scores.shape == (len(data.test.y), 3)  # It still takes samples, as a served model does.


@pytest.mark.parametrize("harm", [lambda b: b[:-4] + bytes([1, 2, 3, 4]), lambda b: b[:50], lambda b: b""])
def test_a_damaged_feature_file_is_computed_again(harm, tmp_path, caplog):
    model, x = plan_of().model(), data_of().train.x
    store = store_in(tmp_path)
    expected = store.of(model, x)
    (path,) = files(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(harm(whole))
    assert torch.equal(store.of(model, x), expected) and "computed again" in caplog.text
    assert path.read_bytes() == whole


def test_other_weights_settings_or_samples_have_their_own_files(tmp_path):
    model, x = plan_of().model(), data_of().train.x
    store_in(tmp_path).of(model, x)
    store_in(tmp_path, network="cnn_bn with another setting").of(model, x)
    store_in(tmp_path).of(plan_of(seed=2).model(), x)
    store_in(tmp_path).of(model, x + 1)
    assert len(files(tmp_path)) == 4
    store_in(tmp_path).of(plan_of().model(), x.clone())
    assert len(files(tmp_path)) == 4


def test_the_oldest_feature_files_are_deleted_to_keep_the_limit_of_bytes(tmp_path):
    model, x = plan_of().model(), data_of().train.x
    size = computed(model, x).nbytes
    store = store_in(tmp_path, 3 * size)
    store.of(model, x)
    (first,) = files(tmp_path)
    store.of(model, x + 1)
    (second,) = {*files(tmp_path)} - {first}
    os.utime(first, (0, 0))
    os.utime(second, (1, 1))
    store.of(model, x)
    store.of(model, x + 2)
    assert first in files(tmp_path) and second not in files(tmp_path)
    assert sum(path.stat().st_size for path in files(tmp_path)) <= 3 * size
    store_in(tmp_path / "none", size - 1).of(model, x)
    store_in(tmp_path / "off", 0).of(model, x)
    assert not (tmp_path / "none").exists() and not (tmp_path / "off").exists()


def test_devices_that_share_a_folder_compute_the_features_of_the_same_data_once(tmp_path):
    data = DataSettings(source="digits", domain="mnist", samples=20, test_samples=10, validation=0.2, size=16)
    plan, common = replace(plan_of(), classes=10), tmp_path / "common"

    def run(name):
        settings = DeviceSettings(
            name, folder=str(tmp_path / name), features=str(common), data=data, threads=1, durable=False,
            keep_models=False,
        )  # fmt: skip
        job = LocalTrainer(settings).start(plan)
        seen = seen_by(job.half)
        first_phase(plan, job)
        return seen

    assert run("one") and not run("two")
    assert len(files(common)) == 3 and not (tmp_path / "one" / "features").exists()


def test_all_runs_of_a_folder_share_one_folder_of_features(tmp_path):
    experiments = [Experiment(name, 1, {"name": "fedavg"}, freeze="backbone") for name in ("a", "b")]
    found = {
        device_settings(one, name, BrokerAddress(), tmp_path).features
        for one in experiments
        for name in one.shards
    }
    assert found == {str(tmp_path / ".features")} and not re.fullmatch(NAME, ".features")


def test_a_feature_file_that_another_device_deletes_causes_no_error(tmp_path):
    model, x = plan_of().model(), data_of().train.x
    (tmp_path / "deleted.safetensors").symlink_to(tmp_path / "nothing")
    store_in(tmp_path).of(model, x)
    assert len(files(tmp_path)) == 2


def test_features_are_computed_but_not_stored_if_the_disk_is_full(tmp_path, caplog):
    class Full(Disk):
        def free_bytes(self, folder):
            return 0

    model, x = plan_of().model(), data_of().train.x
    assert torch.equal(store_in(tmp_path, disk=Full(False)).of(model, x), computed(model, x))
    assert not files(tmp_path) and "are not stored: too little of the disk" in caplog.text


def test_samples_are_divided_into_batches_by_their_number_without_loss():
    model, x = plan_of().model(), torch.rand(2 * PIECE + 5, 3, 16, 16)
    seen = seen_by(type("Half", (), {"model": model}))
    rows = computed(model, x)
    assert seen == [19, 18] and rows.shape == (37, 32)
    assert torch.allclose(rows[20:], computed(model, x[20:]), atol=1e-5)
    assert computed(model, x[:0]).shape == (0, 32)


def test_a_network_that_is_trained_or_takes_vectors_keeps_its_samples():
    data = data_of()
    for plan in (
        replace(plan_of(), freeze=None),
        replace(plan_of(network=Network("mlp")), size=32, shape=(6,)),
    ):
        assert not plan.model().takes_features
        half = plan.client_half(data.train, "device-0")
        assert with_features(half, data) is data and half.data is data.train
