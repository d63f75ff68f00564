"""While a disk is full, no new work begins, and one log line states the reason.

The run ends with the same bits.
"""

import errno
import logging
import os
import sqlite3
from types import SimpleNamespace

import pytest

from protofleet.protocol.storage.disk import Disk, name_full
from protofleet.protocol.wire.reasons import Reason
from tests.support.small_federation import assert_same, once_each, simulation


class Full(Disk):
    """A disk that is full between two moments.

    It reports no free space, or (rude) fails only when a file is written.
    """

    def __init__(self, clock, since, until, rude):
        super().__init__(durable=False)
        self.clock, self.since, self.until, self.rude, self.met = clock, since, until, rude, []

    @property
    def full(self):
        return self.since <= self.clock() < self.until

    def free_bytes(self, folder):
        return 0 if self.full and not self.rude else 1 << 40

    def before_step(self, step, what):
        if self.full and step in ("sync", "commit", "make"):
            self.met.append((step, str(what)))
            if step == "commit":
                raise sqlite3.OperationalError("database or disk is full")
            raise OSError(errno.ENOSPC, "No space left on device", str(what))


def with_a_full_disk(folder, party, method, since, seconds, rude):
    disks, run = [], []

    def disk(name):
        if name != party:
            return Disk(durable=False)
        disks.append(Full(lambda: run[0].clock.now if run else 0.0, since, since + seconds, rude))
        return disks[-1]

    run.append(simulation(folder, method, make_disk=disk))
    return run[0], disks[0]


@pytest.mark.slow
@pytest.mark.parametrize("rude", [False, True], ids=["asked", "written"])
@pytest.mark.parametrize("since", [0.4, 1.4, 1.62, 2.3, 3.2])
@pytest.mark.parametrize(("party", "method"), [("coordinator", "fedpall"), ("device-1", "fedavg")])
def test_a_run_waits_for_disk_space_and_ends_with_the_same_bits(
    tmp_path, unbroken, caplog, party, method, since, rude
):
    run, disk = with_a_full_disk(tmp_path, party, method, since, 25.0, rude)
    with caplog.at_level(logging.WARNING):
        run.run()
    assert run.service.finished
    assert_same(unbroken(method), run)
    said = [r.message for r in caplog.records if "is full" in r.message]
    assert len(said) <= 1, said
    again = [r.message for r in caplog.records if "there is room again" in r.message]
    outlasted = (
        run.clock.now > since + 25.0
    )  # The last evaluation does not wait for a device with a full disk.
    assert len(again) == (len(said) if outlasted else 0)
    if not rude:
        begun = [where for step, where in disk.met if "new-" in where or ".part" in where]
        assert len(begun) <= 1, "only work from before may write to the full disk"


class Failing(Disk):
    """A disk on which SQLite fails at every commit between two moments.

    The error comes once the data has been written, as a late lock does.
    """

    words = ""

    def __init__(self, clock):
        super().__init__(durable=False)
        self.clock, self.met = clock, 0

    def before_step(self, step, what):
        if step == "commit" and 1.4 <= self.clock() < 30.0:
            self.met += 1
            error = sqlite3.OperationalError(self.words)
            name_full(error, what.parent)  # The connection of the index calls it in the same way.
            raise error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [("database is locked", "held by another"), ("unable to open database file", "is full (unable")],
)
def test_a_run_waits_for_a_locked_index_and_for_free_inodes(
    tmp_path, unbroken, caplog, monkeypatch, words, said
):
    monkeypatch.setattr(os, "statvfs", without_inodes(os.statvfs))
    run = []

    def disk(name):
        if name != "coordinator":
            return Disk(durable=False)
        made = Failing(lambda: run[0].clock.now if run else 0.0)
        made.words = words
        return made

    run.append(simulation(tmp_path, "fedpall", make_disk=disk))
    with caplog.at_level(logging.WARNING):
        run[0].run()
    assert run[0].service.finished and run[0].service.run.spool.disk.met >= 3
    assert_same(unbroken("fedpall"), run[0])
    assert len([r for r in caplog.records if said in r.message]) == 1
    assert len([r for r in caplog.records if "the run goes on" in r.message]) == 1
    assert not [r for r in caplog.records if "locked" in words and "full" in r.message]


def without_inodes(real):
    def statvfs(folder):
        names = [name for name in dir(os.statvfs_result) if name.startswith("f_")]
        found = real(folder)
        return SimpleNamespace(
            **{**{n: getattr(found, n) for n in names}, "f_files": 9, "f_favail": 0, "f_bavail": 1 << 30}
        )

    return statvfs


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    return once_each(lambda method: simulation(tmp_path_factory.mktemp(method), method).run())


def test_an_answer_without_disk_space_is_rejected_before_the_fetch(tmp_path):
    run, disk = with_a_full_disk(tmp_path, "coordinator", "fedavg", 1.3, 1e9, rude=False)
    run.clock.run(lambda: run.clock.now > 45)
    assert (
        run.service.run.queue.full_disk.problem and run.service.run.link.meter.rejected[Reason.NO_ROOM] >= 3
    )
    assert run.service.run.machine.round == 1 and not disk.met, (
        "the coordinator checks the free space before it writes"
    )
    assert run.service.run.spool.bytes_of_answers() == 0
    disk.until = run.clock.now
    run.run()
    assert run.service.finished and not run.service.run.queue.full_disk.problem


def test_a_device_without_disk_space_does_not_train(tmp_path):
    run, disk = with_a_full_disk(tmp_path, "device-1", "fedavg", 0.52, 1e9, rude=False)
    run.clock.run(lambda: run.clock.now > 40)
    assert run.agents["device-1"].view.disk_full and not run.agents["device-1"].state.saved.answers
    assert not [where for _, where in disk.met if "new-" in where], "no answer is computed in vain"
    disk.until = run.clock.now
    run.run()
    assert run.service.finished and run.agents["device-1"].state.saved.answers


def test_answers_of_the_earlier_round_are_removed_to_make_room(tmp_path):
    """The answers are kept for a damaged snapshot, but free space is more important. Their verdicts stay."""
    run = simulation(tmp_path, "fedavg")
    run.run(until=lambda: run.service.run.machine.round == 2 and run.service.run.question.ask is not None)
    spool, gate = run.service.run.spool, run.service.run.gate
    before = spool.bytes_of_answers()
    assert len(spool.answers(1, "train")) == 3 and before > 0
    gate.limits = type(gate.limits)(answer_bytes=before, spool_bytes=before + 1)
    gate.reserve("device-0", before)
    assert spool.bytes_of_answers() == 0 and not list((tmp_path / "coordinator" / "answers").glob("*"))
    assert spool.recover()[0].earlier.keys() == run.agents.keys(), "a repeated answer gets the same verdict"
