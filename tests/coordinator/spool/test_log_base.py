"""The SQLite log of the index has its changes, is merged at the right time, and is ignored if it does not fit."""

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys

import pytest

from benchmarks.harness.syncs import Syncs
from protofleet.coordinator.spool.index import Index
from protofleet.coordinator.spool.log_base import log_beside
from protofleet.protocol.storage.disk import Disk
from tests.crash.platter import FrailDisk, Platter


@pytest.fixture
def disk(tmp_path):
    (tmp_path / "run").mkdir()
    return FrailDisk(Platter(tmp_path / "run", tmp_path / "shelf"))


@pytest.fixture
def opened(disk):
    """Return a function that opens an index, as a process does, and close each index when the test ends."""
    made = []

    def index(disk=disk):
        made.append(Index(disk.platter.folder, disk))
        return made[-1]

    yield index
    for each in made:
        each.close()


def close_round(index, number):
    with index.transaction():
        index.put("closed", number, "train", "[]")


def begin_round(index, number):
    with index.last_transaction():
        index.put("checkpoint", number, number, 0, "[]", "[]", "")


def rounds(index):
    closed = index.db.execute("SELECT round FROM closed ORDER BY round").fetchall()
    return [row[0] for row in closed]


def test_a_commit_is_in_the_log_and_survives_a_kill_and_a_power_cut(opened, disk):
    index = opened()
    close_round(index, 1)
    assert log_beside(index.path).stat().st_size > 0
    disk.die()
    disk.platter.cut(None)
    assert rounds(opened(FrailDisk(disk.platter))) == [1]


def test_the_file_has_all_rows_and_the_log_is_empty_when_a_round_begins(opened):
    index = opened()
    close_round(index, 1)
    begin_round(index, 2)
    assert log_beside(index.path).stat().st_size == 0
    with contextlib.closing(sqlite3.connect(f"{index.path.as_uri()}?immutable=1", uri=True)) as db:
        assert db.execute("SELECT round FROM closed").fetchall() == [(1,)]


@pytest.mark.parametrize("later", [1, 2, 3], ids="rounds later: {}".format)
def test_the_log_of_a_later_file_is_put_aside_if_an_older_file_was_restored(opened, disk, caplog, later):
    index = opened()
    close_round(index, 1)
    begin_round(index, 2)
    backup = index.path.read_bytes()
    for number in range(2, 2 + later):
        close_round(index, number)
        begin_round(index, number + 1)
    close_round(index, 2 + later)
    disk.die()
    index.path.write_bytes(backup)
    assert rounds(opened(FrailDisk(disk.platter))) == [1]
    assert "spool.sqlite-wal does not belong to the present version of" in caplog.text
    assert index.path.with_name("spool.sqlite-wal.foreign").stat().st_size > 0


def test_a_log_that_is_copied_together_with_its_file_is_used(opened, disk, tmp_path, caplog):
    index = opened()
    close_round(index, 1)
    begin_round(index, 2)
    close_round(index, 2)
    disk.die()
    shutil.copytree(disk.platter.folder, tmp_path / "elsewhere")
    there = Index(tmp_path / "elsewhere", Disk(durable=False))
    assert rounds(there) == [1, 2] and not caplog.text
    there.close()


def test_a_kill_between_the_last_transaction_and_the_merge_loses_no_row(opened, disk, caplog):
    index = opened()
    close_round(index, 1)
    begin_round(index, 2)
    close_round(index, 2)

    def killed(step, what):
        if step == "merge":
            raise KeyboardInterrupt

    disk.before_step = killed
    with pytest.raises(KeyboardInterrupt):
        begin_round(index, 3)
    disk.die()
    again = opened(FrailDisk(disk.platter))
    assert rounds(again) == [1, 2] and not caplog.text
    assert again.db.execute("SELECT MAX(round) FROM checkpoint").fetchone() == (3,)


def reader_of(index):
    reader = sqlite3.connect(index.path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM closed").fetchall()
    return reader


@pytest.mark.parametrize("killed", [False, True])
def test_the_log_is_not_merged_while_another_program_reads_and_no_row_is_lost(opened, disk, caplog, killed):
    index, readers = opened(), []

    def read_on(step, what):
        """Keep one reader open at all times, from just before each merge to the next one."""
        if step == "merge":
            readers.append(reader_of(index))
            for reader in readers[:-1]:
                reader.close()
            if killed and len(readers) == 3:
                raise KeyboardInterrupt

    index.db.execute("PRAGMA busy_timeout = 1")
    begin_round(index, 1)
    disk.before_step = read_on
    for number in (1, 2, 3):
        close_round(index, number)
        with contextlib.suppress(KeyboardInterrupt):
            begin_round(index, number + 1)
    disk.before_step = lambda step, what: None
    assert log_beside(index.path).stat().st_size > 0
    if killed:
        disk.die()
        with disk.platter.as_they_are():
            readers[-1].close()
        assert rounds(opened(FrailDisk(disk.platter))) == [1, 2, 3] and not caplog.text
    else:
        readers[-1].close()
        begin_round(index, 5)
        assert log_beside(index.path).stat().st_size == 0


def test_a_long_log_is_not_merged_before_the_end_of_the_round(opened):
    """The beginning of a log states to which file it belongs, and a merge would make SQLite start the log again."""
    index = opened()
    begin_round(index, 1)
    before = index.path.read_bytes()
    for number in range(100):
        with index.transaction():
            index.put("aside", number, "device", "x" * 60_000)
    assert log_beside(index.path).stat().st_size > 1500 * 4096 and index.path.read_bytes() == before


def test_an_index_on_a_remote_disk_has_no_log_and_loses_no_row_in_a_kill(opened, disk):
    class Remote(FrailDisk):
        def is_local(self, folder):
            return False

    close_round(opened(), 1)
    disk.die()
    remote = Remote(disk.platter)
    index = opened(remote)
    close_round(index, 2)
    begin_round(index, 3)
    assert rounds(index) == [1, 2] and not log_beside(index.path).exists()
    remote.die()
    remote.platter.cut(None)
    assert rounds(opened(Remote(disk.platter))) == [1, 2]


@pytest.mark.parametrize("then", [False, True], ids=["alone", "before a durable one"])
def test_an_undurable_commit_does_not_wait_for_the_disk_and_is_durable_with_the_next_commit(
    opened, disk, then
):
    index = opened()
    begin_round(index, 1)
    with index.undurable_transaction():
        index.put("closed", 1, "train", "[]")
    if then:
        close_round(index, 2)
    disk.die()
    disk.platter.cut(None)
    assert rounds(opened(FrailDisk(disk.platter))) == ([1, 2] if then else [])


def test_a_deferred_row_is_durable_with_any_kind_of_commit(opened, disk):
    index = opened()
    begin_round(index, 1)
    index.defer(lambda: index.put("closed", 1, "train", "[]"))
    with index.undurable_transaction():
        index.put("closed", 1, "mix", "[]")
    disk.die()
    disk.platter.cut(None)
    assert rounds(opened(FrailDisk(disk.platter))) == [1, 1]


COMMITS = """
import os, sys
from pathlib import Path
from protofleet.coordinator.spool.index import Index
from protofleet.protocol.storage.disk import Disk
index = Index(Path(sys.argv[1]), Disk())
with index.last_transaction():
    pass
for number in range(int(sys.argv[3])):
    with getattr(index, sys.argv[2])():
        index.put("closed", number, "train", "[]")
os._exit(0)  # SQLite would merge the log
"""


@pytest.mark.parametrize(("kind", "each"), [("transaction", 1), ("undurable_transaction", 0)])
def test_a_durable_commit_needs_one_fsync_and_an_undurable_commit_needs_none(tmp_path, kind, each):
    def syncs(commits):
        folder = tmp_path / str(commits)
        folder.mkdir()
        counted = Syncs(folder)
        command = [sys.executable, "-c", COMMITS, str(folder), kind, str(commits)]
        subprocess.run(command, check=True, env={**os.environ, **counted.environment}, timeout=60)
        return counted.count

    assert (syncs(41) - syncs(1)) / 40 == each
