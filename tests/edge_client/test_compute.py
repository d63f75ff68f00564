"""A device that computes on "auto" takes a GPU only for networks with enough work for it."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from protofleet.edge_client.compute import (
    CPU,
    available_cores,
    compute_place,
    flops_of,
    gpu_pays,
)
from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.trainer.job import LocalJob
from protofleet.edge_client.trainer.local import LocalTrainer
from protofleet.lab.local import run as local_run
from protofleet.lab.local.experiment import Experiment
from protofleet.methods.contract.catalog import names
from protofleet.methods.contract.plan import Network, Plan
from protofleet.protocol.settings.reader import decode, tomllib
from tests.support.small_experiment import TWO

GPU = torch.device("cuda")


def plan(network, batch=32, size=28):
    return Plan("fedavg", 10, 1, size=size, network=Network(network), hyper={"batch": batch})


@pytest.mark.parametrize("network", ["mlp", "cnn23", "cnn4"])
def test_the_flops_of_a_sample_equal_those_that_torch_counts(network):
    model, axes = plan(network).model().eval(), plan(network).input_shape.axes
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, *axes))
    assert flops_of(model, axes) == counter.get_total_flops() > 0


@pytest.mark.parametrize(
    ("network", "cores", "pays"),
    [
        ("mlp", 1, False), ("cnn23", 1, True), ("cnn23", 2, False), ("cnn23", 16, False),
        ("cnn4", 16, True), ("cnn4", 32, False), ("resnet10", 16, True), ("resnet10", 64, True),
    ],
)  # fmt: skip
def test_gpu_pays_only_if_a_batch_has_enough_work_for_the_cores(network, cores, pays):
    assert gpu_pays(plan(network), cores=cores) == pays


def test_gpu_pays_uses_the_devices_own_network_if_there_is_one():
    assert gpu_pays(plan("mlp"), Network("resnet10"), cores=16)
    assert not gpu_pays(plan("resnet10"), Network("mlp"), cores=16)


@pytest.mark.parametrize("method", names())
def test_gpu_pays_knows_the_batch_size_of_each_method(method):
    small, large = (Plan(method, 10, 1, size=28, network=Network(name)) for name in ("mlp", "resnet10"))
    assert (gpu_pays(small, cores=16), gpu_pays(large, cores=16)) == (False, True)


def test_the_flops_of_a_large_network_are_not_counted(monkeypatch):
    monkeypatch.setattr("protofleet.edge_client.compute.flops_of", lambda *given: pytest.fail("it was"))
    assert gpu_pays(plan("resnet10", batch=64), cores=16)


@pytest.fixture
def with_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("protofleet.edge_client.compute.available_cores", lambda: 16)


def test_auto_chooses_by_the_network_and_cpu_or_cuda_is_always_obeyed(with_gpu):
    found = {
        (choice, network): compute_place(choice, plan(network))
        for choice in ("auto", "cpu", "cuda")
        for network in ("mlp", "resnet10")
    }
    assert found == {
        ("auto", "mlp"): CPU, ("auto", "resnet10"): GPU, ("cpu", "mlp"): CPU, ("cpu", "resnet10"): CPU,
        ("cuda", "mlp"): GPU, ("cuda", "resnet10"): GPU,
    }  # fmt: skip
    assert compute_place("auto") == GPU, "before there is a plan"


def test_auto_is_the_cpu_without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert compute_place("auto", plan("resnet10")) == CPU


class RecordingAdmission:
    """An admission to a GPU that this machine lacks; it records the names of the work and does none of it."""

    def __init__(self):
        self.pieces = []

    def run(self, work, do):
        self.pieces.append(work.name)


@pytest.mark.parametrize(
    ("compute", "network", "pieces"),
    [("auto", "mlp", []), ("auto", "resnet10", ["a plan"]), ("cuda", "mlp", ["a plan"])],
)
def test_a_device_starts_a_job_on_the_gpu_only_if_the_gpu_pays(with_gpu, tmp_path, compute, network, pieces):
    data = DataSettings(source="digits", domain="mnist", samples=20, test_samples=10)
    settings = DeviceSettings("d", folder=str(tmp_path), data=data, threads=1, compute=compute)
    admission = RecordingAdmission()
    job = LocalTrainer(settings, admission=lambda place: admission, alone=False).start(plan(network, size=32))
    assert admission.pieces == pieces
    assert isinstance(job, LocalJob) == (not pieces)


def test_auto_keeps_the_data_on_the_cpu_before_there_is_a_plan(with_gpu, tmp_path):
    data = DataSettings(source="digits", domain="mnist", samples=20, test_samples=10)
    for compute, moved in (("auto", []), ("cuda", ["the device's data"])):
        settings = DeviceSettings("d", folder=str(tmp_path), data=data, threads=1, compute=compute)
        admission = RecordingAdmission()
        LocalTrainer(settings, admission=lambda place, to=admission: to)
        assert admission.pieces == moved


def test_at_least_one_core_is_available():
    assert available_cores() >= 1


@pytest.mark.parametrize(
    ("on_gpu", "network", "compute", "expected"),
    [
        (True, "mlp", "auto", "cpu"), (True, "resnet10", "auto", "auto"), (True, "mlp", "cuda", "cuda"),
        (False, "mlp", "auto", "auto"),
    ],
)  # fmt: skip
def test_a_local_run_chooses_where_its_devices_compute(monkeypatch, on_gpu, network, compute, expected):
    monkeypatch.setattr(local_run, "computes_on_gpu", lambda compute: on_gpu)
    data = {"source": "digits", "samples": 20, "size": 28}
    table = {**tomllib.loads(TWO), "network": {"name": network}, "compute": compute, "data": data}
    experiment = decode(Experiment, table)
    assert local_run.compute_of(experiment) == expected
