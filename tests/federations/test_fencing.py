"""Two parties of one kind use one folder: the later one continues.

The earlier one stops with a reason, and damages nothing.
"""

import threading

import numpy as np
import pytest

from protofleet.coordinator.round.events import Close, Rollback, Stage
from protofleet.coordinator.spool.spool import FencedError, Spool
from protofleet.edge_client.state.device import DeviceState, TakenOverError
from protofleet.edge_client.state.file import Answer
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.wire.reasons import Reason
from protofleet.runtime.command.exit_codes import exit_code
from tests.support.small_federation import assert_same, simulation

HASH = "ab" * 32


def answer(state, round=1):
    name = state.store.put({"weights.w": np.full(3, round, np.float32)}).object.hex()
    return Answer(f"{round:064x}", round, "train", HASH, name, 5, {})


def test_only_the_later_of_two_processes_of_one_device_writes(tmp_path):
    old = DeviceState(tmp_path, durable=False)
    old.boot(5)
    old.begin("spring", HASH)
    old.save_answer(answer(old), {})
    new = DeviceState(tmp_path, durable=False)
    assert new.boot(5) == 6, "the boot number is above that of the other process, independent of the clock"
    with pytest.raises(
        TakenOverError, match=r"taken over .*boot number 6; this process, with boot number 5, stops"
    ) as error:
        old.save_answer(answer(old, 2), {})
    assert exit_code(error.value) == 1 and "\n" not in str(error.value)
    assert DeviceState(tmp_path, durable=False).saved == new.saved
    new.save_answer(answer(new, 2), {})
    assert [a.round for a in new.saved.answers] == [2]


class At(Disk):
    """A disk that makes one other call just before a step."""

    def __init__(self, step, name, then):
        super().__init__(durable=False)
        self._step, self._name, self._then = step, name, then

    def before_step(self, step, what):
        if step == self._step and what.match(self._name) and (then := self._then):
            self._then = None
            then()


@pytest.mark.parametrize(
    ("step", "name"),
    [("rename", "objects/*.body"), ("sync", ".device.json.*.new"), ("rename", "device.json")],
)
def test_a_device_that_is_superseded_during_a_write_keeps_the_answer_and_the_boot(tmp_path, step, name):
    """The loop may receive the refusal of its name at any step of a write of the worker."""
    state, threads = DeviceState(tmp_path, durable=False), []
    state.boot(5)
    state.begin("spring", HASH)
    worked = answer(state)

    def supersede():
        threads.append(threading.Thread(target=state.is_superseded, args=(9, 5)))
        threads[0].start()
        threads[0].join(0.3)  # The thread may have to wait until the worker has written.

    state.disk = state.store.disk = At(step, name, supersede)
    state.save_answer(worked, {"weights.w": np.ones(3, np.float32)})
    threads[0].join()
    for found in (state, DeviceState(tmp_path, durable=False)):
        assert found.file.boot == 9 and found.saved.answers == [worked]


def test_a_superseded_process_leaves_its_folder_to_the_newer_process(tmp_path):
    old = DeviceState(tmp_path, durable=False)
    old.boot(5)
    old.begin("spring", HASH)
    new = DeviceState(tmp_path, durable=False)
    new.boot(5)
    new.save_answer(answer(new), {})
    assert old.is_superseded(6, 5)
    with pytest.raises(TakenOverError, match="boot number 6; this process, with boot number 5, stops"):
        old.save_answer(answer(old, 2), {})
    found = DeviceState(tmp_path, durable=False)
    assert (found.file.boot, found.saved.answers) == (6, new.saved.answers)


@pytest.mark.slow
def test_an_older_process_that_resumes_its_training_changes_no_bit(tmp_path):
    run = simulation(tmp_path, "fedpall")
    run.run(until=lambda: run.agents["device-1"].state.last_round == 1)
    old = run.agents["device-1"]
    run.kill("device-1")
    run.boot_device("device-1")
    asked = old.state.saved.answers[-1]
    with pytest.raises(TakenOverError):
        old.state.save_answer(asked, {"weights.w": np.zeros(3, np.float32)})
    assert_same(simulation(tmp_path / "other", "fedpall").run(), run.run())


@pytest.mark.parametrize("command", [Close(1, "train", ("device-0",)), Rollback()])
def test_a_superseded_coordinator_writes_nothing(tmp_path, command):
    run = simulation(tmp_path, "fedavg")
    run.run(until=lambda: run.service.run.machine.answered)
    old = run.service
    run.kill("coordinator")
    run.boot_coordinator()
    with pytest.raises(FencedError, match="another coordinator, of epoch 2, has taken over"):
        old.run.write(command)
    assert_same(simulation(tmp_path / "other", "fedavg").run(), run.run())


def test_the_worker_of_a_superseded_coordinator_changes_nothing(tmp_path):
    """The worker comes back late, and prunes no broadcast of the other coordinator."""
    run = simulation(tmp_path, "fedavg")
    run.run(until=lambda: run.service.run.machine.stage is Stage.COMPUTING)
    worker = run.workers["coordinator"]
    run.kill("coordinator")
    run.boot_coordinator()
    worker.alive = True
    with pytest.raises(FencedError, match="another coordinator, of epoch 2, has taken over"):
        run.run()
    assert_same(simulation(tmp_path / "other", "fedavg").run(), run.run())


def test_coordinators_that_start_at_the_same_time_have_different_epochs(tmp_path):
    spools = [Spool(tmp_path, durable=False) for _ in range(5)]
    assert [spool.start_run("spring", "{}", 7) for spool in spools] == [7, 8, 9, 10, 11]


def test_messages_of_the_older_of_two_devices_with_one_identity_are_rejected(tmp_path):
    """A copied SD card has the same keys in another folder."""
    run = simulation(tmp_path, "fedavg")
    run.run(until=lambda: run.service.run.machine.round == 2)
    old = run.agents["device-1"]
    run.boot_device("device-1")
    run.run(until=lambda: run.service.link.last_heard("device-1")[0] == run.agents["device-1"].link.me.boot)
    frames = []
    old.link.transport.publish = lambda topic, frame, *how: frames.append((topic, frame))
    while not frames:
        old.wake(old.wake_at)
    before = run.service.run.link.meter.rejected[Reason.STALE_BOOT]
    run.broker.clients["coordinator"].take(type_of_arrival(*frames[0]))
    assert run.service.run.link.meter.rejected[Reason.STALE_BOOT] == before + 1
    assert_same(simulation(tmp_path / "other", "fedavg").run(), run.run())


def type_of_arrival(topic, frame):
    from protofleet.protocol.transport.base import Arrived

    return Arrived(topic, frame)
