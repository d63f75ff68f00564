"""Training in a separate process gives the same bits, and its death is reported and not fatal."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.conversation.retry_backoff import RetryBackoff
from protofleet.edge_client.data.errors import DataError
from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.trainer.child_trainer import ChildTrainer, kills
from protofleet.edge_client.trainer.errors import TrainerDiedError, TrainingError
from protofleet.edge_client.trainer.local import LocalTrainer
from protofleet.edge_client.trainer.pipe import receive, send
from protofleet.methods.contract.base import Member
from protofleet.methods.contract.bridge import LazyPayload, to_numpy
from protofleet.methods.contract.plan import Network, Plan
from protofleet.methods.plugins.allowed import PlugIns
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.storage.store import ObjectStore
from protofleet.protocol.wire.messages import Bye
from protofleet.protocol.wire.reasons import DisconnectReason, disconnect_reason_of
from tests.support.plug_ins import block, sha256
from tests.support.small_federation import POLICY, assert_same, simulation

ROOT = Path(__file__).parents[3]
DATA = DataSettings(source="digits", domain="mnist", samples=80, test_samples=20, size=16)


def settings(folder, **changes):
    return DeviceSettings(
        "a", folder=str(folder), **{"data": DATA, **changes}, threads=1, trainer="child", compute="cpu"
    )


def plan_of(**hyper):
    return Plan("fedavg", 10, 3, 1, 16, Network("cnn23"), {"epochs": 1, "batch": 16, "lr": 0.05, **hyper})


def asked(plan):
    server = plan.server_half()
    server.begin(1, [Member("a", 80, (8,) * 10)])
    return next(server.round())


@pytest.fixture
def trainer(tmp_path):
    """Return a function that starts a trainer process; `saved` returns the state that its agent has saved."""
    made = []

    def start(saved=lambda: None, **changes):
        made.append(ChildTrainer(settings(tmp_path, **changes), saved))
        return made[-1]

    yield start
    for one in made:
        one.stop()


def rounds_of(job, ask, count=2):
    """Run `count` rounds, each of which receives the answer of the last, and return all answers and states."""
    found, received = [], copies(to_numpy(ask.payload))
    for number in range(1, count + 1):
        payload, metrics = job.run(ask.phase, number, received)
        found.append((copies(payload), metrics, copies(job.state())))
        received = copies(payload)
    return found


def copies(arrays):
    """Return copies of arrays that may be the model's own memory."""
    return {name: value.copy() for name, value in arrays.items()}


def assert_equal(one, other):
    for (p, m, s), (q, n, t) in zip(one, other, strict=True):
        assert m == n
        for a, b in ((p, q), (s, t)):
            assert a.keys() == b.keys() and all((a[k] == b[k]).all() for k in a)


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def kill_at_work(pid, before):
    """Kill a process as soon as it has worked for 50 ms more than `before`, its seconds of CPU time."""
    while cpu_seconds(pid) < before + 0.05:
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)


def unbroken(tmp_path, plan, ask, count=2):
    before = torch.get_num_threads()
    trainer = LocalTrainer(settings(tmp_path))
    found = rounds_of(trainer.start(plan), ask, count)
    torch.set_num_threads(before)
    torch.set_deterministic_debug_mode("default")
    return trainer.data, found


def test_a_separate_trainer_process_gives_the_same_bits(tmp_path, trainer):
    plan = plan_of()
    ask = asked(plan)
    data, expected = unbroken(tmp_path, plan, ask)
    child = trainer()
    labels = child.data
    assert (labels.domain, labels.classes) == (data.domain, data.classes)
    assert torch.equal(labels.train.y, data.train.y) and labels.train.x.numel() == 0
    assert_equal(rounds_of(child.start(plan), ask), expected)


@pytest.mark.slow
def test_a_killed_trainer_is_reported_and_its_successor_gives_the_same_bits(tmp_path, trainer):
    plan = plan_of(epochs=150)  # many times the work that it can do before it is killed
    ask = asked(plan)
    _, expected = unbroken(tmp_path, plan, ask, count=2)
    saved = []
    child = trainer(lambda: saved[-1] if saved else None)
    job = child.start(plan)
    first = rounds_of(job, ask, count=1)
    saved.append(first[0][2])
    number = child.pid
    threading.Thread(target=kill_at_work, args=(number, cpu_seconds(number))).start()
    received = first[0][0]
    with pytest.raises(TrainerDiedError) as death:
        job.run(ask.phase, 2, copies(received))
    assert death.value.why in (DisconnectReason.TRAINING_DIED, DisconnectReason.OUT_OF_MEMORY)
    again, metrics = job.run(ask.phase, 2, copies(received))
    assert child.pid != number
    assert_equal([*first, (copies(again), metrics, copies(job.state()))], expected)


def test_a_trainer_continues_after_wrong_arrays_and_gives_the_same_bits(tmp_path, trainer):
    plan = plan_of()
    ask = asked(plan)
    _, expected = unbroken(tmp_path, plan, ask, count=1)
    child = trainer()
    process, job, right = child.pid, child.start(plan), to_numpy(ask.payload)
    for wrong in ({**right, "surplus": np.zeros(1, np.float32)}, dict(list(right.items())[1:])):
        with pytest.raises(TrainerDiedError) as refusal:
            job.run(ask.phase, 1, wrong)
        assert refusal.value.why is DisconnectReason.WRONG_ARRAYS
    assert_equal(rounds_of(child.start(plan), ask, count=1), expected)
    assert child.pid == process


@pytest.mark.slow
def test_a_trainer_that_died_while_idle_is_replaced_and_gives_the_same_bits(tmp_path, trainer):
    plan = plan_of()
    ask = asked(plan)
    _, expected = unbroken(tmp_path, plan, ask, count=1)
    child = trainer()
    job = child.start(plan)
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # with all threads; its exit code stays readable
    assert_equal(rounds_of(job, ask, count=1), expected)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["plan", "data"])
def test_a_replacement_trainer_names_the_plug_in_that_has_changed(tmp_path, trainer, where):
    code = block("adding-a-method.md", "fedexp") if where == "plan" else block("plug-ins.md", "blobs")
    file = tmp_path / f"{'fedexp' if where == 'plan' else 'blobs'}.py"
    file.write_text(code)
    plugins = PlugIns((str(file),), (sha256(code),))
    own = {"data": DataSettings(source="blobs", file=str(file), size=16)} if where == "data" else {}
    child = trainer(plugins=plugins, **own)
    plan = plan_of()
    if where == "plan":
        plugins.take("method", "fedexp", sha256(code))
        plan = Plan("fedexp", 10, 3, 1, 16, Network("cnn23"), {"epochs": 1}, plugins={"method": sha256(code)})
    else:
        plan = replace(plan, classes=child.data.classes)
    job, ask = child.start(plan), asked(plan)
    job.run(ask.phase, 1, to_numpy(ask.payload))
    file.write_text(code + "# changed\n")
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(SettingsError, match=r"(fedexp|blobs)\.py .*has SHA-256"):
        job.run(ask.phase, 2, to_numpy(ask.payload))


@pytest.mark.slow
def test_a_limit_on_memory_ends_the_training_and_not_the_agent(tmp_path, trainer):
    child = trainer(trainer_memory_bytes=1_500_000_000)
    network = Network("mlp", feature_size=65_536, embedding_size=6_000)  # 1.8 GB
    large = Plan("fedavg", 10, 3, 1, 16, network, {"epochs": 1, "batch": 16, "lr": 0.05})
    with pytest.raises(TrainerDiedError) as death:
        child.start(large)
    assert death.value.why is DisconnectReason.OUT_OF_MEMORY and "memory" in str(death.value)
    small = plan_of()
    ask = asked(small)
    assert child.start(small).run(ask.phase, 1, to_numpy(ask.payload))[1]["samples.test"] == 20


@pytest.mark.slow
def test_work_longer_than_trainer_seconds_is_ended(tmp_path, trainer):
    plan = plan_of(epochs=1000)
    child = trainer(trainer_seconds=0.5)
    with pytest.raises(TrainerDiedError, match="training_died: the work did not end within 0.5 s"):
        child.start(plan).run("train", 1, to_numpy(asked(plan).payload))


@pytest.mark.slow
def test_an_internal_error_of_the_trainer_is_raised_with_its_traceback(trainer):
    child = trainer()
    job = child.start(replace(plan_of(), method="fedproto"))
    with pytest.raises(TrainingError, match="Traceback"):
        job.restore({"weights.nonsense": np.zeros(1, np.float32)})


def test_unusable_data_raise_a_data_error_that_names_the_folder(tmp_path):
    bad = DeviceSettings(
        "a", folder=str(tmp_path), data=DataSettings(source="folder", root="/nowhere"), trainer="child"
    )
    with pytest.raises(DataError, match="/nowhere"):
        ChildTrainer(bad, lambda: None)


AGENT = """
import os, sys
from pathlib import Path
from protofleet.edge_client.trainer.child_trainer import ChildTrainer
from tests.edge_client.trainer.test_trainer import settings
print(ChildTrainer(settings(Path(sys.argv[1])), lambda: None).pid, flush=True)
os._exit(1)
"""


@pytest.mark.slow
def test_the_trainer_process_ends_with_its_agent(tmp_path):
    told = subprocess.run(
        [sys.executable, "-c", AGENT, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=60
    )
    ended(int(told.stdout))


def ended(pid):
    """Wait until a process that is not a child of this one has ended."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return
        except FileNotFoundError:
            return
        time.sleep(0.01)
    raise AssertionError(f"process {pid} runs still")


def test_out_of_memory_kills_are_read_from_the_count_of_the_kernel(tmp_path):
    own, group = tmp_path / "cgroup", tmp_path / "a.service"
    own.write_text("0::/a.service\n")
    assert kills(tmp_path, own) == -1
    group.mkdir()
    (group / "memory.events").write_text("low 0\nhigh 0\nmax 5\noom 2\noom_kill 2\n")
    assert kills(tmp_path, own) == 2


def test_a_device_reports_its_dead_trainer_to_the_coordinator_and_continues(tmp_path):
    """The trainer dies once in the middle of a run. The others need not wait, and later updates stay the same."""
    sim = simulation(tmp_path / "run", "fedavg", policy=POLICY)
    agent, heard = sim.agents["device-1"], []
    start_job, deaths = agent.tasks.runner.start_job, iter([True])

    def start(plan):
        job = start_job(plan)
        run = job.run

        def once(phase, number, received):
            if number == 2 and next(deaths, False):
                raise TrainerDiedError(
                    DisconnectReason.OUT_OF_MEMORY, "the kernel has ended the process that trains"
                )
            return run(phase, number, received)

        job.run = once
        return job

    agent.tasks.runner.start_job = start
    sim.service.run.observers.append(ByeObserver(heard))
    sim.run()
    assert sim.service.context.departures[DisconnectReason.OUT_OF_MEMORY] == 1
    assert any(reason.startswith("out_of_memory: the kernel") for reason in heard)
    assert agent.view.receipts["accepted"] >= 3
    assert_same(sim, simulation(tmp_path / "other", "fedavg", policy=POLICY).run())


class ByeObserver:
    def __init__(self, heard):
        self.heard = heard

    def happened(self, service, event, commands, now):
        self.heard += [event.reason] if type(event).__name__ == "Left" else []

    def answered(self, service, update, now): ...
    def stepped(self, service, step, now): ...


def test_retry_pauses_grow_and_differ_between_devices_and_reset_after_success():
    one, other = RetryBackoff("a"), RetryBackoff("b")
    pauses = [one.begin(0.0) for _ in range(8)]
    assert all(15 <= p <= 900 for p in pauses) and pauses[-1] >= 450
    assert [other.begin(0.0) for _ in range(8)] != pauses
    one.succeeded()
    assert one.begin(100.0) <= 30 and 115 <= one.until <= 130


def test_the_reason_of_each_bye_is_mapped_to_one_of_a_closed_list():
    assert disconnect_reason_of("out_of_memory: it was 5 GB") is DisconnectReason.OUT_OF_MEMORY
    assert disconnect_reason_of("drained") is DisconnectReason.DRAINED
    for text in ("", "out of memory", "x" * 1000, Bye().reason):
        assert disconnect_reason_of(text) is DisconnectReason.OTHER


def test_an_agent_holds_an_update_in_memory_only_once(tmp_path):
    """A board with little memory needs this: each array comes through the pipe, and there is no second copy."""
    ours, theirs = socket.socketpair()
    sent = {"weights.large": np.ones(4_000_000, np.float32), "weights.none": np.empty((0, 3), np.float32)}
    with ours, theirs:
        speaker = threading.Thread(target=send, args=(theirs, {}, sent))
        speaker.start()
        tracemalloc.start()
        _, heard = receive(ours)
        tensors = dict(LazyPayload(heard, unshared=True))
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        speaker.join()
    assert most < 1.1 * sent["weights.large"].nbytes
    assert {name: tuple(value.shape) for name, value in tensors.items()} == {
        "weights.large": (4_000_000,), "weights.none": (0, 3),
    }  # fmt: skip
    assert tensors["weights.large"].data_ptr() == heard["weights.large"].ctypes.data


def test_an_agent_sends_a_broadcast_from_its_disk_one_array_at_a_time(tmp_path):
    store, ones = ObjectStore(tmp_path, durable=False), np.ones(1_000_000, np.float32)
    broadcast = store.open(store.put({f"weights.{number}": ones for number in range(8)}).object)
    ours, theirs = socket.socketpair()
    buffer, came = bytearray(1 << 20), []
    listener = threading.Thread(target=lambda: came.extend(iter(lambda: theirs.recv_into(buffer), 0)))
    with theirs:
        with ours:
            listener.start()
            tracemalloc.start()
            send(ours, {}, broadcast)
            most = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        listener.join()
    assert most < 2.5 * ones.nbytes and sum(came) > 8 * ones.nbytes
