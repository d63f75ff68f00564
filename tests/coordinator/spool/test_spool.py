"""A spool has its contents after a restart, a power cut, and a round that began again."""

import contextlib
import sqlite3

import numpy as np
import pytest

from protofleet.coordinator.spool.broadcast_chain import ChainLink
from protofleet.coordinator.spool.generations import begin_generation
from protofleet.coordinator.spool.index import RunMismatchError, check_run
from protofleet.coordinator.spool.spool import Accepted, FencedError, Spool
from protofleet.methods.contract.base import Member
from protofleet.protocol.wire.arrays import encode
from tests.crash.platter import FrailDisk, Platter
from tests.support.steps import steps_of

DEVICES = ("device-0", "device-1")
MEMBERS = {name: Member(name, 5, ()) for name in DEVICES}
BASE = bytes(32)


@pytest.fixture
def platter(tmp_path):
    return Platter(tmp_path / "coordinator", tmp_path / "shelf")


@pytest.fixture
def spool(platter):
    """Yield a spool at the start of round 1, on a disk that keeps only what was synced."""
    spool = Spool(platter.folder, disk=FrailDisk(platter))
    spool.start_run("spring", '{"rounds": 3}', 1)
    save(spool, 1)
    yield spool
    spool.close()


def save(spool, round, attempt=0):
    spool.save(round, attempt, DEVICES, MEMBERS, {"w": np.full(3, round)})


def accept(spool, device, round, phase="train", whole=False):
    """Store and accept an answer of a device and return its object; `whole` means that it came in one message."""
    store, arrays = spool.store(device), {"w": np.full(3, round + 0.5)}
    answer = store.put_bytes(b"".join(encode(arrays))) if whole else store.put(arrays).object
    spool.accept(round, phase, Accepted(device, BASE, answer, 5, {}))
    spool.commit()
    return answer


def test_a_folder_can_be_checked_for_its_run_while_its_coordinator_runs(spool, platter):
    """A take-over checks this first, so that it stops no running coordinator for settings that do not fit."""
    check_run(platter.folder, "spring", '{"rounds": 3}')
    for other in (("summer", '{"rounds": 3}'), ("spring", '{"rounds": 4}')):
        with pytest.raises(
            RunMismatchError,
            match="holds run spring, which was begun with other settings; go on .* another name",
        ):
            check_run(platter.folder, *other)
    check_run(platter.folder / "new", "summer", "")
    accept(spool, "device-0", 1)  # The check did not take the folder over.


@pytest.fixture
def started_again(spool):
    again = []

    def start():
        spool.close()
        again.append(Spool(spool.folder, durable=False))
        return again[0]

    yield start
    for each in again:
        each.close()


@pytest.mark.parametrize("whole", [True, False], ids=["in a message", "in blocks"])
def test_an_accepted_answer_survives_a_power_cut(spool, platter, started_again, whole):
    answer = accept(spool, "device-0", 1, whole=whole)
    spool.disk.die()
    platter.cut(None)
    again = started_again()
    past, _ = again.recover()
    assert past.accepted == {"train": {"device-0": BASE}} and not again.fallbacks["answer"]
    assert again.store("device-0").has(answer)


def test_a_new_generation_begins_its_round_once_and_without_the_earlier_answers(spool, started_again):
    accept(spool, "device-0", 1)
    spool.close_phase(1, "train", ["device-0"])
    assert begin_generation(spool.index, 2, spool.newest_round)
    past, _ = started_again().recover()
    assert (past.accepted, past.closed) == ({}, {})
    again = started_again()
    accept(again, "device-0", 1)
    assert not begin_generation(again.index, 2, again.newest_round), "generation 2 has begun already"
    past, _ = started_again().recover()
    assert past.accepted == {"train": {"device-0": BASE}}


def test_an_accepted_answer_survives_a_transaction_that_fails(spool, started_again, monkeypatch):
    answer = spool.store("device-0").put_bytes(b"".join(encode({"w": np.full(3, 1.5)})))
    spool.accept(1, "train", Accepted("device-0", BASE, answer, 5, {}))

    def full(db, path, durable):
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch, pytest.raises(sqlite3.OperationalError):
        patch.setattr(spool.disk, "commit", full)
        spool.close_phase(1, "train", ["device-0"])
    assert not spool.answers(1, "train"), "the disk has rolled it back"
    spool.commit()
    past, _ = started_again().recover()
    assert past.accepted == {"train": {"device-0": BASE}} and past.closed == {}


def test_a_write_between_commands_is_kept_while_another_program_locks_the_index(spool, started_again):
    """The server steps between two commands, and then saves the chain. A lock must not end the coordinator there."""
    spool.index.db.execute("PRAGMA busy_timeout = 0")
    link = ChainLink(1, "train", BASE, b"", b"", BASE)
    with contextlib.closing(sqlite3.connect(spool.index.path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        spool.save_chain([link])
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            spool.commit()
        other.execute("ROLLBACK")
    spool.commit()
    assert started_again().chain() == [link]


@pytest.mark.parametrize("saved", [False, True], ids=["before it is saved", "once it is saved"])
def test_a_round_that_begins_again_has_no_phase_that_ended(spool, saved, started_again):
    accept(spool, "device-0", 1)
    spool.close_phase(1, "train", ["device-0"])
    spool.rollback(1)
    if saved:
        save(spool, 1, attempt=1)
    past, _ = started_again().recover()
    assert past.closed == {} and past.accepted == {"train": {"device-0": BASE}}


def test_a_rollback_of_a_round_does_not_change_the_round_before(spool, started_again):
    """With a damaged snapshot, the replay would begin at the round before."""
    spool.close_phase(1, "train", list(DEVICES))
    save(spool, 2)
    spool.close_phase(2, "train", ["device-0"])
    spool.rollback(2)
    newest = max((spool.folder / "snapshots").glob("*.body"), key=lambda path: path.stat().st_mtime_ns)
    newest.write_bytes(b"damaged")
    past, _ = started_again().recover()
    assert (past.round, past.closed) == (1, {"train": DEVICES})
    assert [(ahead.round, ahead.closed) for ahead in past.ahead] == [(2, {})]


def test_answers_are_kept_as_long_as_a_replay_may_begin_at_their_round(spool):
    first = accept(spool, "device-0", 1)
    save(spool, 2)
    assert spool.store("device-0").has(first)
    second = accept(spool, "device-0", 2)
    save(spool, 3)
    assert spool.store("device-0").has(second) and not spool.store("device-0").has(first)


@pytest.fixture
def taken_over(spool):
    """Let another coordinator take over the folder, and yield its spool."""
    later = Spool(spool.folder, durable=False)
    later.start_run("spring", '{"rounds": 3}', 1)
    yield later
    later.close()


def test_a_coordinator_that_was_replaced_cannot_write(spool, taken_over):
    with pytest.raises(FencedError, match="another coordinator, of epoch 2, has taken over"):
        save(spool, 2)
    with pytest.raises(FencedError):
        spool.close_phase(1, "train", ["device-0"])
    past, _ = taken_over.recover()
    assert (past.round, past.closed) == (1, {})


def test_each_claim_has_a_higher_epoch_while_the_clock_stands_at_zero(tmp_path):
    epochs = []
    for _ in range(3):
        spool = Spool(tmp_path, durable=False)
        epochs.append(spool.start_run("spring", "{}", 0))
        spool.close()
    assert epochs == [0, 1, 2]


def test_a_file_that_a_later_coordinator_removed_is_reported_as_a_take_over(spool, taken_over):
    with pytest.raises(FencedError, match="has taken over"), spool.index.detect_takeover():
        (spool.folder / "updates" / "device-0" / "removed").read_bytes()


def test_a_missing_file_without_a_take_over_raises_file_not_found(spool):
    with pytest.raises(FileNotFoundError, match="never there"), spool.index.detect_takeover():
        (spool.folder / "never there").read_bytes()


def steps(spool, call):
    """Return the number of steps of SQLite's virtual machine during the call."""
    counted = 0

    def step():
        nonlocal counted
        counted += 1

    spool.index.db.set_progress_handler(step, 1)
    call()
    spool.index.db.set_progress_handler(None, 0)
    return counted


def test_the_steps_to_find_a_contradicting_answer_do_not_grow_with_the_answers(tmp_path):
    spool = Spool(tmp_path / "coordinator", durable=False)
    names = [bytes([number]) * 32 for number in range(2)]
    needed = []
    for number in range(60):
        device = f"device-{number}"
        spool.accept(1, "train", Accepted(device, BASE, names[0], 5, {}))
        assert spool.has_other_answer(1, "train", device, BASE, names[1])
        assert not spool.has_other_answer(1, "train", device, BASE, names[0])
        assert not spool.has_other_answer(1, "train", device, bytes(31), names[1])
        needed.append(steps(spool, lambda d=device: spool.has_other_answer(1, "train", d, BASE, names[0])))
    assert needed[-1] == needed[0] > 0
    spool.close()


def test_the_steps_of_a_save_for_each_device_do_not_grow_with_the_devices(tmp_path):
    def steps_each(number):
        spool = Spool(tmp_path / str(number), durable=False)
        for i in range(number):
            name = spool.store(f"device-{i:03}").put({"w": np.full(3, i)}).object
            spool.accept(1, "train", Accepted(f"device-{i:03}", BASE, name, 5, {}))
        steps = steps_of(lambda: save(spool, 1))
        kept = all(len(spool.store(f"device-{i:03}").names()) == 1 for i in range(number))
        spool.close()
        assert kept
        return steps / number

    assert steps_each(300) < 1.2 * steps_each(30)
