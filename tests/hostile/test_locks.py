"""Other programs on the machine of a coordinator: one locks its index, one stops reading its events."""

import contextlib
import json
import os
import signal
import sqlite3

import pytest

from protofleet.coordinator.round.policy import Policy
from tests.hostile.device import honest
from tests.hostile.federation import Federation


@contextlib.contextmanager
def held(path, mode):
    """Hold the index as an open shell does that has read a row, or as a program that writes does."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=20)) as db:
        if mode == "read":
            db.execute("BEGIN")
            db.execute("SELECT * FROM run").fetchone()
        else:
            db.execute("BEGIN EXCLUSIVE")
        yield
        db.execute("ROLLBACK")


# As on NFS: a program that only reads blocks a writer, and a program that writes blocks a reader.
WITHOUT_LOG = """
from protofleet.protocol.storage.disk import Disk
Disk.is_local = lambda self, folder: False
"""
# The coordinator waits for a lock for one second at a time, and not for five.
SHORT_WAITS = """
from protofleet.coordinator.spool.index import SpoolConnection
opened = SpoolConnection.__init__
def open_with_short_waits(self, path):
    opened(self, path)
    self.execute("PRAGMA busy_timeout = 1000")
SpoolConnection.__init__ = open_with_short_waits
"""
HELD_AT_RESUME = """
import os, sqlite3, sys, threading, time
import protofleet.coordinator.run as run
resume = run.Run._resume
def held(self):
    db = sqlite3.connect(self.spool.index.path, isolation_level=None, check_same_thread=False)
    db.execute("BEGIN IMMEDIATE")
    def let_go():
        while not os.path.exists({!r}):
            time.sleep(0.05)
        db.close()
    threading.Thread(target=let_go, daemon=True).start()
    resume(self)
run.Run._resume = held
"""


@pytest.mark.parametrize(("mode", "planted"), [
    ("read", WITHOUT_LOG), ("exclusive", WITHOUT_LOG), ("exclusive", ""),
], ids=["read without a log", "written without a log", "written"])  # fmt: skip
def test_a_coordinator_waits_while_another_program_locks_its_index(tmp_path, mode, planted):
    with Federation(tmp_path, "one", "two", rounds=5) as f:
        coordinator, gate = f.coordinator(planted=SHORT_WAITS + planted), []

        def work(task):
            return honest(task) if gate or task.round < 3 else None

        one, _ = f.raw("one", work), f.raw("two", work)
        f.wait_until(lambda: len(f.rounds()) == 2, "the third round")
        with held(f.run / "coordinator" / "spool.sqlite", mode):
            gate.append("open")
            f.wait_until(lambda: "held by another program" in f.log_of(coordinator), "word of the lock")
            one.greet()  # A device arrives while the index is locked.
            at = len(f.rounds())
            f.wait_until(lambda: f.metrics(), "the metrics")
        f.wait_until(lambda: len(f.rounds()) > at + 1, "rounds after the lock")
        assert f.wait_for_end(coordinator) == 0, f.last_words()
        said = f.log_of(coordinator)
        assert said.count("the run waits") <= 1 and "is full" not in said and "Traceback" not in said
        assert said.count("can be written again; the run goes on") == said.count("the run waits")
        assert said.count("can be read again") == said.count("waits to read")
        assert [line["round"] for line in f.rounds()] == list(range(1, 7))


def test_a_program_that_reads_the_index_does_not_delay_the_run(tmp_path):
    with Federation(tmp_path, "one", rounds=5) as f:
        coordinator, gate = f.coordinator(), []
        f.raw("one", lambda task: honest(task) if gate or task.round < 3 else None)
        f.wait_until(lambda: len(f.rounds()) == 2, "the third round")
        with held(f.run / "coordinator" / "spool.sqlite", "read"):
            gate.append("open")
            f.wait_until(lambda: len(f.rounds()) > 3, "rounds while it is read")
        assert f.wait_for_end(coordinator) == 0, f.last_words()
        assert "held by" not in f.log_of(coordinator)


@contextlib.contextmanager
def unreadable(federation):
    """Yield a coordinator in the middle of a run whose loop waits to read the index."""
    coordinator, one = federation.coordinator(planted=SHORT_WAITS + WITHOUT_LOG), federation.raw("one")
    federation.wait_until(lambda: federation.rounds(), "a round")
    with held(federation.run / "coordinator" / "spool.sqlite", "exclusive"):
        one.greet()
        federation.wait_until(
            lambda: "waits to read the index" in federation.log_of(coordinator), "word of the lock"
        )
        yield coordinator


def test_a_coordinator_that_waits_to_read_its_index_is_not_ended_by_the_watchdog(tmp_path):
    watchdog = 8.0
    with Federation(tmp_path, "one", rounds=100_000, watchdog_seconds=watchdog) as f:
        with unreadable(f) as coordinator:
            f.stays(coordinator.runs, "it to run", 2 * watchdog)
        f.wait_until(lambda: "can be read again" in f.log_of(coordinator), "the index to be read")
        at = len(f.rounds())
        f.wait_until(lambda: len(f.rounds()) > at, "a round after the lock")


def test_a_coordinator_that_waits_to_read_its_index_can_be_stopped(tmp_path):
    with Federation(tmp_path, "one", rounds=100_000) as f, unreadable(f) as coordinator:
        coordinator.say(signal.SIGTERM)
        assert f.wait_for_end(coordinator) == 1
        last = f.log_of(coordinator).splitlines()[-1]
        assert "database is held by another program" in last and "Traceback" not in f.log_of(coordinator)


def test_an_answer_that_is_found_damaged_at_a_start_waits_for_a_locked_index(tmp_path):
    with Federation(tmp_path, "one", "two", policy=Policy(quorum=2)) as f:
        coordinator, works = f.coordinator(), []
        one = f.raw("one")
        f.raw("two", lambda task: honest(task) if works else None)
        one.wait("receipt")  # The receipt goes out only when the answer is on the disk.
        coordinator.kill()
        for path in (f.run / "coordinator" / "answers").glob("*.log"):
            path.write_bytes(path.read_bytes()[:-1])
        free = tmp_path / "free"
        coordinator = f.coordinator(planted=SHORT_WAITS + HELD_AT_RESUME.format(str(free)))
        f.wait_until(lambda: "held by another program" in f.log_of(coordinator), "word of the lock")
        free.touch()
        works.append(True)
        assert f.wait_for_end(coordinator) == 0, f.last_words()
        said = f.log_of(coordinator)
        assert "the answer of one to round 1 train is damaged; the device is asked again" in said
        assert "can be written again; the run goes on" in said and "Traceback" not in said
        assert [line["participants"] for line in f.rounds()] == [["one", "two"]] * 4


def test_a_reader_of_events_that_ends_does_not_end_the_run(tmp_path):
    reader, writer = os.pipe()
    with Federation(tmp_path, "one") as f:
        coordinator = f.coordinator(out=writer)
        os.close(writer)
        f.raw("one")
        with os.fdopen(reader) as events:  # It reads one line, as `head -1` does.
            assert json.loads(events.readline())["event"]
        assert f.wait_for_end(coordinator) == 0, f.last_words()
        assert f.log_of(coordinator).count("the program that reads the events is gone") == 1
        assert [line["round"] for line in f.rounds()] == [1, 2, 3, 4]
