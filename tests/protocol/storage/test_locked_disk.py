"""Tests that errors of SQLite are classified: disk full, locked by another program, or neither."""

import contextlib
import os
import sqlite3
from types import SimpleNamespace

import pytest

from protofleet.protocol.storage.disk import is_full, is_locked, name_full, shortage


def error_of(code, words):
    made = sqlite3.OperationalError(words)
    made.sqlite_errorcode = code
    return made


def test_a_locked_database_is_reported_as_locked_and_not_as_full(tmp_path):
    with contextlib.ExitStack() as ends:
        one, other = (
            ends.enter_context(
                contextlib.closing(sqlite3.connect(tmp_path / "db", timeout=0, isolation_level=None))
            )
            for _ in "ab"
        )
        one.execute("BEGIN EXCLUSIVE")
        with pytest.raises(sqlite3.OperationalError) as caught:
            other.execute("BEGIN IMMEDIATE")
    assert is_locked(caught.value) and not is_full(caught.value)


@pytest.mark.parametrize("code", [14, 10, 10 | 4 << 8])
@pytest.mark.parametrize("free", [0, 7])
def test_a_file_that_cannot_be_opened_counts_as_a_full_disk_if_no_inode_is_free(monkeypatch, code, free):
    found = SimpleNamespace(f_files=9, f_favail=free, f_bavail=1 << 30, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda folder: found)
    fault = error_of(code, "unable to open database file")
    assert not is_full(fault), "nobody has looked at the disk"
    name_full(fault, "somewhere")
    assert is_full(fault) == (free == 0) and not is_locked(fault)
    assert str(fault) == "unable to open database file" + (", no inode is free" if free == 0 else "")
    assert shortage("somewhere") == ("" if free else "no inode is free")


def test_the_error_code_decides_and_the_words_count_only_without_a_code():
    assert is_full(error_of(13, "said otherwise")) and is_locked(error_of(5 | 1 << 8, "said otherwise"))
    assert not is_full(error_of(1, "no such column: full")) and not is_locked(error_of(1, "x locked"))
    assert is_full(sqlite3.OperationalError("database or disk is full"))
    assert is_locked(sqlite3.OperationalError("database is locked"))
    assert not is_locked(sqlite3.DatabaseError("database is locked"))
