"""Tests that a full disk is an ordinary fault: it rejects blocks, and ends when there is space again."""

import errno
import os
import resource
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.storage.store import ObjectStore
from protofleet.protocol.wire.reasons import Reason
from tests.protocol.objects import BLOCK, BODY, fault_of, fill
from tests.support.open_files import open_files


def failing_once(number, real):
    """Return a replacement of a system call that fails at the first call and then does the real call."""
    left = [OSError(number, os.strerror(number))]

    def call(*arguments):
        if left:
            raise left.pop()
        return real(*arguments)

    return call


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_block_is_rejected_on_a_full_disk_and_accepted_later(store, manifest, monkeypatch, number):
    partial = store.begin(manifest)
    monkeypatch.setattr(os, "pwrite", failing_once(number, os.pwrite))
    assert fault_of(lambda: fill(partial, [0])) is Reason.NO_ROOM
    assert fill(partial, [0]) == [True]


def test_a_disk_error_other_than_a_full_disk_is_raised(store, manifest, monkeypatch):
    partial = store.begin(manifest)
    monkeypatch.setattr(os, "pwrite", failing_once(errno.EIO, os.pwrite))
    with pytest.raises(OSError, match="Input/output error"):
        fill(partial, [0])


def test_an_object_that_cannot_begin_on_a_full_disk_leaves_no_file_open(store, manifest, monkeypatch):
    monkeypatch.setattr(os, "ftruncate", failing_once(errno.ENOSPC, os.ftruncate))
    assert fault_of(lambda: store.begin(manifest)) is Reason.NO_ROOM
    assert not open_files(store.folder)
    assert not any(store.begin(manifest).have)


def test_a_full_disk_at_the_last_sync_loses_no_block(tmp_path, manifest, monkeypatch):
    store = ObjectStore(tmp_path / "durable")
    partial = store.begin(manifest)
    fill(partial, range(8))
    monkeypatch.setattr(os, "fsync", failing_once(errno.ENOSPC, os.fsync))
    assert fault_of(partial.finish) is Reason.NO_ROOM
    again = store.begin(manifest)
    assert again.complete
    again.finish()
    assert store.has(manifest.object)


@contextmanager
def file_limit(size):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_the_file_size_limit_of_the_system_counts_as_a_full_disk(store, manifest):
    partial = store.begin(manifest)
    with file_limit(BLOCK):
        assert fault_of(lambda: fill(partial, [3])) is Reason.NO_ROOM
        assert fault_of(lambda: store.put_bytes(BODY)) is Reason.NO_ROOM
        assert fault_of(lambda: store.begin(replace(manifest, object=b"x" * 32))) is Reason.NO_ROOM
    assert not list(store.folder.glob("new-*")), "what did not fit must not fill the disk further"


def test_a_block_that_fits_only_in_part_is_rejected_and_accepted_later(store, manifest):
    """The kernel writes the part that fits and reports no error; only the next write fails."""
    partial = store.begin(manifest)
    with file_limit(BLOCK + BLOCK // 2):
        assert fill(partial, [0]) == [True]
        assert fault_of(lambda: fill(partial, [1])) is Reason.NO_ROOM
    assert fill(partial, range(1, 8)) == [True] * 7
    partial.finish()
    assert store.read(manifest.object, 0, manifest.size) == BODY


def test_a_file_is_complete_although_each_call_writes_only_some_bytes(tmp_path, monkeypatch):
    path, real = tmp_path / "notes", os.pwrite
    path.write_bytes(b"the earlier notes")
    monkeypatch.setattr(os, "pwrite", lambda handle, data, start: real(handle, data[:3], start))
    Disk(durable=False).overwrite(path, b"the present notes")
    assert path.read_bytes() == b"the present notes"


FULL_DISK = """
import os, sys; from pathlib import Path
from protofleet.protocol.wire.reasons import Rejected; from protofleet.protocol.storage.store import ObjectStore
from tests.protocol.ends import weights
source, store = ObjectStore(Path(sys.argv[1]), False), ObjectStore(Path(sys.argv[2]), False)
manifest = source.put(weights(200_000))
try:
    store.begin(manifest)
except Rejected as fault:
    print(fault.reason.value, len(os.listdir(sys.argv[2])))
os.system("mount -o remount,size=2m " + sys.argv[2])
partial = store.begin(manifest)
for i in range(len(manifest.hashes)):
    partial.write(i, memoryview(source.read(manifest.object, i << 16, min(i + 1 << 16, manifest.size))))
partial.finish()
print("whole" if store.has(manifest.object) else "not whole")
"""


def test_a_real_full_disk_refuses_an_object_and_is_used_once_it_has_space(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    script = (
        f'mount -t tmpfs -o size=256k none {disk} && exec {sys.executable} -c "$0" {tmp_path}/source {disk}'
    )
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, FULL_DISK], capture_output=True, text=True,
        cwd=Path(__file__).parents[3],
    )  # fmt: skip
    if "Operation not permitted" in done.stderr or "unshare failed" in done.stderr:
        pytest.skip("this machine lets nobody mount")
    assert done.stdout.split() == ["no_room", "0", "whole"], done.stderr
