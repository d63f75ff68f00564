"""A turn of the loop writes all, then commits once, then sends, and also copes with a full disk."""

import errno
import sqlite3

import pytest

from protofleet.coordinator.command_queue import RETRY_SECONDS, CommandQueue
from protofleet.coordinator.round.events import Accept, Close, Drop, Repeat, Save
from protofleet.coordinator.spool.spool import Spool
from protofleet.protocol.wire.reasons import Problem, Reason
from protofleet.runtime.faults import OurFault

FULL = OSError(errno.ENOSPC, "No space left on device")
LOCKED = sqlite3.OperationalError("database is locked")


class Recorder:
    """A performer that notes its steps, and fails at the step with the number `fails_at` as long as that is set."""

    def __init__(self):
        self.steps, self.fails_at, self.error = [], 0, FULL

    def _step(self, *what):
        if len(self.steps) + 1 == self.fails_at:
            raise self.error
        self.steps.append(what)

    def write(self, command):
        self._step("write", command)

    def commit(self):
        self._step("commit")

    def say(self, command):
        self._step("say", command)


@pytest.fixture
def performer():
    return Recorder()


@pytest.fixture
def spool(tmp_path):
    spool = Spool(tmp_path, durable=False)
    yield spool
    spool.close()


@pytest.fixture
def queue(spool, performer):
    yield CommandQueue(spool, performer)


def accepts(count):
    return [Accept(f"device-{i}", 1, "train") for i in range(count)]


def said(performer):
    return [step[1] for step in performer.steps if step[0] == "say"]


@pytest.mark.parametrize("count", [1, 2, 64])
def test_a_turn_writes_all_commands_then_commits_once_then_sends_all_in_order(queue, performer, count):
    commands = accepts(count)
    for command in commands:
        queue.add([command], 0.0)
    assert performer.steps == [("write", command) for command in commands], (
        "no command is sent before the end of the turn"
    )
    queue.end_turn(0.0)
    assert performer.steps[count:] == [("commit",), *(("say", command) for command in commands)]
    assert not queue


def test_a_turn_without_commands_commits_nothing(queue, performer):
    queue.end_turn(0.0)
    assert performer.steps == []


def test_a_turn_commits_rows_without_a_command_so_that_another_coordinator_can_take_over(
    queue, performer, spool, tmp_path
):
    spool.note_used(1, "train", ["device-0"])
    performer.commit = spool.commit
    queue.end_turn(0.0)
    other = Spool(tmp_path, durable=False)
    other.start_run("another", "{}", 0)
    other.close()


def test_a_commit_without_a_command_is_tried_again_when_the_disk_has_space(queue, performer, spool):
    spool.note_used(1, "train", ["device-0"])
    performer.fails_at = 1
    queue.end_turn(0.0)
    assert performer.steps == [] and queue.wake_at == RETRY_SECONDS
    performer.fails_at = 0
    queue.wake(RETRY_SECONDS)
    assert performer.steps == [("commit",)] and queue.wake_at == float("inf")


@pytest.mark.parametrize("error", [FULL, LOCKED], ids=["full", "locked"])
@pytest.mark.parametrize(("count", "step"), [(n, s) for n in (1, 2, 64) for s in range(1, 2 * n + 2)])
def test_each_command_is_sent_once_and_after_its_commit_if_the_disk_is_full_at_any_step(
    queue, performer, count, step, error
):
    commands = accepts(count)
    performer.fails_at, performer.error = step, error
    for command in commands:
        queue.add([command], 0.0)
    queue.end_turn(0.0)
    queue.end_turn(1.0)  # turns continue in the meantime
    assert queue and queue.wake_at == RETRY_SECONDS
    performer.fails_at = 0
    queue.wake(RETRY_SECONDS - 0.1)
    assert queue, "the command is not tried again at once"
    queue.wake(RETRY_SECONDS)
    queue.end_turn(RETRY_SECONDS)
    assert said(performer) == commands and not queue and queue.wake_at == float("inf")
    for command in commands:
        written, spoken = performer.steps.index(("write", command)), performer.steps.index(("say", command))
        assert ("commit",) in performer.steps[written:spoken]


def test_a_command_that_was_written_before_the_disk_was_full_is_sent_in_the_same_turn(queue, performer):
    first, second = accepts(2)
    performer.fails_at = 2
    queue.add([first], 0.0)
    queue.add([second], 0.0)
    performer.fails_at = 0  # there is a little room again
    queue.end_turn(0.0)
    assert said(performer) == [first] and len(queue) == 1


def test_no_command_is_written_or_sent_after_a_commit_that_waits(queue, performer):
    first, second = accepts(2)
    performer.fails_at = 2
    queue.add([first], 0.0)
    queue.end_turn(0.0)
    queue.add([second], 1.0)
    queue.end_turn(1.0)
    assert performer.steps == [("write", first)] and len(queue) == 2


def test_only_a_write_reports_that_the_disk_has_space_again(queue, performer, caplog):
    queue.no_room("for an answer")
    queue.add(
        [Repeat("device-0", 1, "train"), Drop("b", 1, "train", "late", Problem(Reason.STALE_ROUND, ""))], 0.0
    )
    queue.end_turn(0.0)
    assert queue.full_disk.problem and "room again" not in caplog.text
    queue.add([Save(1, 0, ("device-0",))], 0.0)
    queue.end_turn(0.0)
    assert not queue.full_disk.problem and "there is room again" in caplog.text


def test_an_error_of_another_kind_names_the_command_and_ends_the_process(queue, performer):
    performer.fails_at, performer.error = 1, KeyError("device-7")
    with pytest.raises(OurFault, match=r"Close\(round=1, phase='train'"):
        queue.add([Close(1, "train", ("device-7",))], 0.0)
