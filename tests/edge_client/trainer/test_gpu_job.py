"""Jobs of every method that share a GPU, even when memory runs out, give the bits of a device with its own GPU."""

import contextlib
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.group.device import Process
from protofleet.edge_client.job_runner import JobRunner
from protofleet.edge_client.state.device import DeviceState
from protofleet.edge_client.trainer.deadline import Deadline
from protofleet.edge_client.trainer.errors import TrainerDiedError
from protofleet.edge_client.trainer.gpu_job import GpuJob, GpuWork
from protofleet.edge_client.trainer.job import SECONDS_WAITED, LocalJob
from protofleet.edge_client.trainer.local import LocalTrainer
from protofleet.edge_client.work_queue import Question
from protofleet.methods.contract.bridge import to_numpy
from protofleet.methods.contract.catalog import load
from protofleet.methods.contract.plan import Network, Plan
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.wire.reasons import DisconnectReason
from tests.edge_client.gpu.simulated import GpuProcess
from tests.support.few_methods import SHAPES
from tests.support.small_federation import once_each, simulation


class OutOfMemoryAtTheEnd(LocalJob):
    """A job in which every third piece of a phase runs out of memory after it has changed the half.

    The first piece never does, as no other device's work can be the cause. A piece that is tried again never does.
    """

    def __init__(self, *args, pieces, **kwargs):
        super().__init__(*args, **kwargs)
        self.pieces = pieces  # phase -> pieces of work of all devices

    def run(self, phase, number, received):
        result = super().run(phase, number, received)
        self.pieces[phase] += 1
        if self.pieces[phase] % 3 == 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        return result


def on_shared_gpu(folder, method, *, stays):
    """Run the small federation with all devices in one process on one GPU; return the run and the GPU usage."""
    run = simulation(folder / "run", method)
    (folder / "turns").mkdir()
    process, pieces = GpuProcess.on(folder), Counter()
    for name, agent in run.agents.items():
        agent.tasks.runner.start_job = jobs(process, name, run.shards[name], stays, pieces)
    return run.run(), process.admission.usage


def jobs(process, name, data, stays, pieces):
    def start(plan):
        work = GpuWork(process.admission, plan.digest.hex(), 1000)
        return GpuJob(work, lambda: begin(plan), stays=stays)

    def begin(plan):
        half = plan.client_half(data.train, name, validation=data.validation)
        return OutOfMemoryAtTheEnd(half, data, plan.variant.reports, pieces=pieces)

    return start


def learned(run):
    """Return the state of the server half and the half that each device has saved."""
    found = {f"server/{k}": v.numpy() for k, v in run.service.run.server_runner.server.state().items()}
    for name, agent in run.agents.items():
        found |= {f"{name}/{k}": v.copy() for k, v in (agent.state.half() or {}).items()}
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return once_each(lambda method: simulation(tmp_path_factory.mktemp(method), method).run())


# A half that leaves the GPU is restored from its state each time; the job keeps one that stays. The cases are one
# method of each shape, and those with their own networks. `make gpu` runs every method on a machine with a GPU.
OWN_NETWORKS = ("singleset", "adcol", "fcclplus", "fedgen", "fedkd", "fedsr", "fml", "rucr")
STAY = ("singleset", "fedavg", "fedpall", "rucr")
CASES = [("leaves", name) for name in (*SHAPES, *OWN_NETWORKS)] + [("stays", name) for name in STAY]


@pytest.mark.parametrize(
    ("stays", "method"),
    [
        pytest.param(s == "stays", m, id=f"{s}-{m}", marks=() if m == "singleset" else pytest.mark.slow)
        for s, m in CASES
    ],
)
def test_devices_on_a_shared_gpu_learn_the_same_bits_even_if_work_runs_out_of_memory(
    method, stays, tmp_path, alone
):
    expected = learned(alone(method))
    run, usage = on_shared_gpu(tmp_path, method, stays=stays)
    found = learned(run)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert np.array_equal(found[key], value), key
    # Once in each of two rounds and in the last evaluation; some methods ask a device only once before that.
    assert usage.out_of_memory >= (2 if load(method).Server.keeps_answers else 3)


DATA = DataSettings(source="digits", domain="mnist", samples=80, test_samples=20, size=16)
PLAN = Plan("fedavg", 10, 3, 1, 16, Network("mlp"), {"epochs": 1, "batch": 16, "lr": 0.05})


@pytest.fixture
def trainer(tmp_path):
    """Yield a function that makes a trainer on a simulated GPU, which computes on the CPU."""
    (tmp_path / "turns").mkdir()
    threads = torch.get_num_threads()

    def on(alone=False, deadline=None, **gpu):
        admission = GpuProcess.on(tmp_path, **gpu).admission
        settings = DeviceSettings("a", folder=str(tmp_path), data=DATA, threads=1, compute="cpu")
        return LocalTrainer(settings, deadline, None, lambda place: admission, alone=alone)

    yield on
    torch.set_num_threads(threads)
    torch.set_deterministic_debug_mode("default")


class NoMemory(Deadline):
    @contextlib.contextmanager
    def running(self, seconds=float("inf")):
        yield
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")


def received():
    server = PLAN.server_half()
    server.begin(1, [])
    return to_numpy(next(server.round()).payload)


@pytest.mark.parametrize("alone", [True, False])
def test_a_trainer_works_in_turns_even_if_its_device_is_alone_in_the_process(alone, trainer):
    one = trainer(alone)
    payload, metrics = one.start(PLAN).run("train", 1, received())
    assert {
        "seconds.waited",
        "accuracy.test.global",
    } <= metrics.keys() and payload.keys() == received().keys()


def test_work_without_enough_gpu_memory_raises_a_trainer_died_error(trainer):
    """The device reports this to the coordinator, and asks for work again after a while."""
    job = trainer(deadline=NoMemory()).start(PLAN)
    with pytest.raises(TrainerDiedError) as death:
        job.run("train", 1, received())
    assert death.value.why is DisconnectReason.OUT_OF_MEMORY
    assert "train alone takes more than" in str(death.value) and "devices.processes" in str(death.value)


def test_data_too_large_for_the_gpu_are_refused_with_the_reason(trainer, monkeypatch):
    def full(shard, place):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr("protofleet.edge_client.trainer.local.moved", full)
    with pytest.raises(
        SettingsError, match="the device's data alone takes more than .* Tried to allocate 2.00 GiB"
    ):
        trainer(alone=True)


def test_a_process_opens_a_gpu_once_and_none_for_the_cpu(monkeypatch):
    opened = []
    monkeypatch.setattr(
        "protofleet.edge_client.trainer.local.Cuda", lambda place: opened.append(place) or FAKE
    )
    process = Process("devices", 2)
    assert process.admission(torch.device("cpu")) is None
    assert process.admission(torch.device("cuda")) is process.admission(torch.device("cuda"))
    assert len(opened) == 1


FAKE = SimpleNamespace(name="fake")


def test_the_wait_for_a_turn_is_in_neither_the_work_time_nor_the_metrics(tmp_path):
    clock = iter([100.0, 110.0])
    job = SimpleNamespace(
        run=lambda phase, number, arrays: ({"w": np.zeros(1, "f4")}, {SECONDS_WAITED: 7.0}),
        state=lambda: {"w": np.zeros(1, "f4")},
    )
    data = SimpleNamespace(train=SimpleNamespace(y=torch.zeros(3)))
    state = DeviceState(tmp_path, durable=False)
    state.begin("run", "digest", 1)
    runner = JobRunner(lambda plan: job, state, data, lambda: 1 << 16, lambda: next(clock))
    answer = runner.answer(job, Question("q", 1, "train", b"", 1), "")
    assert answer.metrics == {"seconds.work": 3.0}
