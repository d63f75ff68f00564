"""Tests that a file is complete or absent, and that nothing remains of an unfinished file."""

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from contextlib import closing

import pytest

from protofleet.protocol.storage.disk import Disk, file_system
from tests.support.noted_disk import NotedDisk

KILLED_WHILE_IT_WRITES = """
import os, signal, sys; from pathlib import Path
from protofleet.protocol.storage.disk import Disk, file_system
with Disk().fresh(Path(sys.argv[1])) as path:
    path.write_bytes(b"half of")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def target(tmp_path):
    path = tmp_path / "device[1].json"  # A glob pattern would read this name as "device1.json".
    path.write_bytes(b"old")
    return path


def only(target):
    return [path.name for path in target.parent.iterdir()] == [target.name]


def test_a_file_keeps_its_old_content_until_all_new_content_is_written(target):
    with Disk().fresh(target) as path:
        path.write_bytes(b"new")
        assert target.read_bytes() == b"old" and path.parent == target.parent
    assert target.read_bytes() == b"new" and only(target)


def test_a_durable_file_is_synced_before_it_is_renamed(target):
    disk = NotedDisk(durable=True)
    disk.replace(target, b"new")
    (first, fresh), *rest = disk.taken
    assert first == "sync" and fresh != target.name
    assert rest == [("rename", target.name), ("sync", target.parent.name)]


def test_a_file_that_need_not_be_durable_is_not_synced(target):
    disk = NotedDisk(durable=True)
    disk.replace(target, b"new", durable=False)
    assert disk.taken == [("rename", target.name)] and target.read_bytes() == b"new"


def test_a_failed_write_leaves_the_old_content_unchanged(target):
    with pytest.raises(OSError, match="full"), Disk().fresh(target) as path:
        path.write_bytes(b"half of")
        raise OSError("the disk is full")
    assert target.read_bytes() == b"old" and only(target)


def test_the_unfinished_file_of_a_killed_process_is_removed_by_the_next_write(target):
    died = subprocess.run([sys.executable, "-c", KILLED_WHILE_IT_WRITES, target], timeout=60)
    assert died.returncode == -signal.SIGKILL and target.read_bytes() == b"old" and not only(target)
    Disk().replace(target.with_name("another"), b"")
    target.with_name("another").unlink()
    assert not only(target), "it may be the file of another target"
    Disk().replace(target, b"new")
    assert target.read_bytes() == b"new" and only(target)


def test_a_process_looks_for_unfinished_files_only_at_its_first_write_of_a_file(target):
    disk = Disk()
    disk.replace(target, b"one")
    left = target.with_name(f".{target.name}.0123abcd.new")
    left.write_bytes(b"half")
    disk.replace(target, b"two")
    assert left.exists(), "whoever left it was not dead before, and is looked for by the next process"
    Disk().replace(target, b"three")
    assert not left.exists() and target.read_bytes() == b"three"


def test_two_writers_of_one_file_at_the_same_time_do_not_disturb_each_other(target):
    first, second = Disk(), Disk()
    with first.fresh(target) as one:
        one.write_bytes(b"one")
        with second.fresh(target) as two:
            two.write_bytes(b"two")
        assert target.read_bytes() == b"two" and one.read_bytes() == b"one"
    assert target.read_bytes() == b"one" and only(target)


def test_many_threads_that_write_one_file_leave_one_of_their_contents(target):
    def write(content):
        for _ in range(20):
            Disk(durable=False).replace(target, content)

    contents = [bytes([n]) * 1000 for n in range(4)]
    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert target.read_bytes() in contents and only(target)


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_a_new_file_has_its_mode_from_the_start_with_any_umask(target, mode):
    before = os.umask(0o027)
    try:
        with Disk().fresh(target, mode) as path:
            assert stat.S_IMODE(path.stat().st_mode) == mode
            path.write_bytes(b"new")
    finally:
        os.umask(before)
    assert stat.S_IMODE(target.stat().st_mode) == mode


def test_a_database_can_be_copied_into_a_fresh_file(target):
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.execute("CREATE TABLE kept (number)")
        db.execute("INSERT INTO kept VALUES (7)")
        with Disk().fresh(target) as path:
            db.execute("VACUUM INTO ?", (str(path),))
    with closing(sqlite3.connect(target)) as copy:
        assert copy.execute("SELECT number FROM kept").fetchall() == [(7,)]


MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:21 / /proc rw,relatime - proc proc rw
40 22 0:50 / {0}/far rw,relatime shared:1 - nfs4 server:/exports rw
41 22 0:51 / {0}/with\\040space rw - fuse.sshfs host: rw
42 40 0:52 / {0}/far/near rw - tmpfs tmpfs rw
43 22 0:53 / {0}/twice rw - ext4 /dev/vdb rw
44 43 0:54 / {0}/twice rw - virtiofs share rw
"""


@pytest.mark.parametrize(("folder", "kind"), [
    ("here", "ext4"), ("far", "nfs4"), ("far/deep", "nfs4"), ("far/near/x", "tmpfs"), ("farther", "ext4"),
    ("with space", "fuse.sshfs"), ("twice", "virtiofs"),
])  # fmt: skip
def test_the_file_system_of_a_folder_is_read_from_its_topmost_mount(tmp_path, folder, kind):
    table = tmp_path / "mountinfo"
    table.write_text(MOUNTS.format(tmp_path))
    assert file_system(tmp_path / folder, table) == kind
    assert file_system(tmp_path / folder, tmp_path / "none") == ""
