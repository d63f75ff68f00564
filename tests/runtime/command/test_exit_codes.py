"""Tests that an error that a user can correct has a clear message and an exit code."""

import contextlib
import sqlite3
from pathlib import Path

import pytest

from protofleet.coordinator.server.budget_spent import BudgetSpentError
from protofleet.coordinator.server.diverged import DivergedError
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.storage.store import DamagedError, NewerFormatError
from protofleet.protocol.user_error import FAILED
from protofleet.runtime.command.errors import OutrankedError, RunError, SteppedDownError, ended_early
from protofleet.runtime.command.exit_codes import exit_code, message


def full_file(folder):
    with open("/dev/full", "wb", buffering=0) as file:  # noqa: PTH123 - a device of the kernel's
        file.write(b"1")


def full_database(folder):
    with contextlib.closing(sqlite3.connect(folder / "db")) as db:
        db.execute("PRAGMA max_page_count = 1")
        db.execute("CREATE TABLE t (a)")


def locked_database(folder):
    with contextlib.ExitStack() as ends:
        one, other = (
            ends.enter_context(contextlib.closing(sqlite3.connect(folder / "db", timeout=0))) for _ in "ab"
        )
        one.execute("BEGIN EXCLUSIVE")
        other.execute("CREATE TABLE t (a)")


@pytest.mark.parametrize(
    ("fail", "begins", "ends"),
    [
        (full_file, "the disk is full: No space left on device;", "make room and run it again"),
        (full_database, "the disk is full: database or disk is full;", "make room and run it again"),
        (locked_database, "the run's database is held by another program", "and run it again"),
    ],
)
def test_the_error_for_a_full_disk_or_a_locked_database_contains_a_fix(tmp_path, fail, begins, ends):
    with pytest.raises((OSError, sqlite3.Error)) as caught:
        fail(tmp_path)
    assert exit_code(caught.value) == FAILED
    assert message(caught.value).startswith(begins) and message(caught.value).endswith(ends)


@pytest.mark.parametrize(
    ("reason", "code", "said"),
    [
        ("signal: SIGTERM", 143, "ended in good order by SIGTERM"),
        ("signal: SIGINT", 130, "ended in good order by SIGINT"),
        ("signal: of another kind", FAILED, "signal: of another kind"),
        (
            "a later coordinator conducts this federation",
            FAILED,
            "a later coordinator conducts this federation",
        ),
    ],
)
def test_a_process_that_a_signal_stops_has_the_exit_code_of_the_signal(reason, code, said):
    assert exit_code(ended_early(reason)) == code and message(ended_early(reason)) == said


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SettingsError("x"), 2),
        (NewerFormatError(Path("x"), 2, 1), 2),
        (DamagedError("x"), 1),
        (RunError("x"), 1),
        (OutrankedError("x"), 3),
        (SteppedDownError("x"), 0),
        (DivergedError("x"), 4),
        (BudgetSpentError("x"), 5),
    ],
)
def test_a_user_error_has_the_exit_code_of_its_class(error, code):
    assert exit_code(error) == code and message(error) == str(error)


def test_an_unexpected_error_has_no_exit_code():
    with contextlib.closing(sqlite3.connect(":memory:")) as db, pytest.raises(sqlite3.Error) as caught:
        db.execute("SELECT full")
    assert exit_code(caught.value) is None
    assert exit_code(RuntimeError("the disk is full")) is None
