"""Where a process's bytes become durable. Every step before or after which a crash can come goes through one Disk."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from protofleet.protocol.wire.reasons import Reason, Rejected

NEW: Final = ".new"  # ends the name of a file that is being written
MOST_SWEPT: Final = 64  # targets that a Disk remembers
MIN_FREE: Final = 1 << 20  # bytes: a disk with less counts as full
# File systems of one machine. Others may be a network's, or a host's that a virtual machine sees.
LOCAL: Final = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "bcachefs", "tmpfs", "overlay"}
)
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
BUSY, LOCKED, IOERR, SQLITE_FULL, CANTOPEN = 5, 6, 10, 13, 14  # SQLite's, of which Python 3.10 has no names


class Disk:
    """The steps by which things become durable. Whoever builds a service gives it one; `Disk()` is the real one.

    Each step first calls `before_step(step, what)` and then happens. A subclass that raises there has killed the
    process just before the step; one that overrides a step has a disk of its own (that forgets, tears, or is full):

    sync      a file's bytes, or the names in a folder, survive a power cut from here on
    make      a folder appears, and its name survives
    rename    a whole file takes the place of the target
    link      a file gets a second name, in the place of what had it; the first name stays in any case
    point     a symbolic link names another target
    overwrite new bytes take the place of as many old ones, in the file itself
    remove    a file goes, if it is there; or a folder and all that is in it
    commit    an SQLite transaction is over: all of it counts and survives, or none
    merge     what SQLite's log holds is in its main file, and the log is empty
    publish   said by a simulated transport alone: a frame leaves

    What is written between two steps is not durable, and nothing may rely on it. `free_bytes` is asked before new
    work. `durable=False` spares the fsyncs: for simulations, and for what a replay makes again.
    """

    def __init__(self, durable: bool = True) -> None:
        self.durable = durable
        self._swept: set[Path] = set()  # targets beside which no killed process has left a new file

    def before_step(self, step: str, what: Path | str) -> None:
        """Nothing, here."""

    def sync(self, path: Path) -> None:
        self.before_step("sync", path)
        if self.durable:
            sync(path)

    def make(self, folder: Path) -> None:
        """With all that is missing above it."""
        if folder.is_dir():
            return
        self.make(folder.parent)
        self.before_step("make", folder)
        folder.mkdir(exist_ok=True)
        self.sync(folder.parent)

    def rename(self, source: Path, target: Path) -> None:
        self.before_step("rename", target)
        source.replace(target)

    def place(self, source: Path, target: Path, durable: bool = True) -> None:
        """A complete file, link or folder takes the place of the target, in the same folder; a folder of none."""
        if durable:
            self.sync(source)
        self.rename(source, target)
        if durable:
            self.sync(target.parent)

    def replace(self, target: Path, data: bytes, mode: int | None = None, durable: bool = True) -> None:
        """`fresh`, for bytes that fit in memory."""
        with self.new_file(target, mode, data) as path:
            self.place(path, target, durable)

    @contextlib.contextmanager
    def fresh(self, target: Path, mode: int | None = None, durable: bool = True) -> Iterator[Path]:
        """A new file to write, which takes the place of the target where nothing fails.

        Whoever reads the target sees the old content or the new one, after a power cut too; with `durable=False`
        a power cut may leave neither, for content that is checked or made again.
        """
        with self.new_file(target, mode) as path:
            yield path
            self.place(path, target, durable)

    @contextlib.contextmanager
    def new_file(self, target: Path, mode: int | None = None, content: bytes = b"") -> Iterator[Path]:
        """A file beside the target that no other thread or process writes; `place` puts it there.

        With a mode it is never more open than that, not even for a moment; without one the umask decides. It is
        removed where anything fails. A process that is killed leaves it, and the next new file for the same target
        removes it.
        """
        self._sweep(target)
        path, handle = _locked_file(target, 0o666 if mode is None else mode)
        try:
            if mode is not None:
                os.fchmod(handle, mode)  # the umask may have taken some of it
            _write(handle, content)
            yield path
        except Exception:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(handle)

    def _sweep(self, target: Path) -> None:
        """Once for what is written again and again: who is killed writes nothing more."""
        if target in self._swept:
            return
        _remove_left_over(target)
        if len(self._swept) >= MOST_SWEPT:
            self._swept.clear()
        self._swept.add(target)

    def link(self, source: Path, target: Path) -> None:
        """Two renames after each other can lose a file in a power cut: neither name need have lasted."""
        self.before_step("link", target)
        spare = target.with_suffix(".spare")
        spare.unlink(missing_ok=True)
        try:
            os.link(source, spare)
        except OSError:  # FAT knows no second names
            spare.write_bytes(source.read_bytes())
            if self.durable:
                sync(spare)
        spare.replace(target)

    def point(self, link: Path, target: str, durable: bool = True) -> None:
        """Whoever opens the link has the old target or the new one. `target` is as seen from the link's folder."""
        self.before_step("point", link)
        spare = link.with_name(f".{link.name}{NEW}")
        spare.unlink(missing_ok=True)
        spare.symlink_to(target)
        spare.replace(link)
        if durable:
            self.sync(link.parent)

    def overwrite(self, path: Path, data: bytes) -> None:
        """`replace` without its new file. After a kill all of it is there or none; after a power cut maybe some.

        For what is checked when it is read and can be done without. `data` has as many bytes as the file.
        """
        self.before_step("overwrite", path)
        handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(handle, data, 0)
        finally:
            os.close(handle)

    def remove(self, path: Path) -> None:
        self.before_step("remove", path)
        path.unlink(missing_ok=True)

    def remove_folder(self, folder: Path) -> None:
        """A death in the midst of it leaves some of it: give it a name first that nobody reads."""
        self.before_step("remove", folder)
        if folder.is_dir():
            shutil.rmtree(folder)

    def commit(self, db: sqlite3.Connection, path: Path, durable: bool = True) -> None:
        """With `durable=False` a power cut may take it back, as far as the database leaves that to the system."""
        self.before_step("commit", path)
        db.execute("COMMIT")

    def merge_log(self, db: sqlite3.Connection, path: Path) -> None:
        """Of a database in WAL mode. The log stays as it is where another program reads the database."""
        self.before_step("merge", path)
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def is_local(self, folder: Path) -> bool:
        """Whether all programs that open a file there are on this machine, so that they can share memory."""
        return file_system(folder) in LOCAL

    def free_bytes(self, folder: Path) -> int:
        """Bytes that may still be written there; 0 on a disk that counts as full."""
        return max(0, shutil.disk_usage(folder).free - MIN_FREE)


class NoRoom(Rejected):
    """What was offered does not fit on the disk at present."""

    def __init__(self, message: str) -> None:
        super().__init__(Reason.NO_ROOM, message)


def no_room(error: OSError) -> Exception:
    """NoRoom, where that is what the error says."""
    return NoRoom(f"the disk is full: {error.strerror}") if error.errno in FULL else error


def sync(path: Path) -> None:
    """Make a file's bytes, or a folder's names, survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_whole(path: Path, content: bytes | bytearray | memoryview) -> None:
    """As `Path.write_bytes`, with half of its calls to the kernel: each of them lets go of the interpreter."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        _write(handle, content)
    finally:
        os.close(handle)


def file_system(folder: Path, table: Path = Path("/proc/self/mountinfo")) -> str:
    """The kind of file system that holds a folder, as Linux calls it; nothing where that is not known."""
    try:
        mounts = [line.split(" - ") for line in table.read_text().splitlines()]
    except OSError:
        return ""
    path, found, deepest = folder.resolve(), "", -1
    for left, right in mounts:
        point = Path(left.split()[4].encode().decode("unicode_escape"))  # a space is \\040 there
        if path.is_relative_to(point) and len(point.parts) >= deepest:  # the last one hides those before it
            found, deepest = right.split()[0], len(point.parts)
    return found


def _locked_file(target: Path, mode: int) -> tuple[Path, int]:
    """Its lock says that its writer lives, and the kernel releases it with the process."""
    while True:
        path = target.parent / f".{target.name}.{secrets.token_hex(4)}{NEW}"
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
        fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            return path, handle
        os.close(handle)  # before it was locked, another process has taken it for one that was left over


def _write(handle: int, content: bytes | bytearray | memoryview) -> None:
    rest = memoryview(content)
    while rest:  # a disk that gets full takes some of it first
        rest = rest[os.write(handle, rest) :]


def _remove_left_over(target: Path) -> None:
    begin = f".{target.name}."
    for name in os.listdir(target.parent):  # noqa: PTH208 - a glob takes ten times as long
        if not (name.startswith(begin) and name.endswith(NEW)):
            continue
        path = target.parent / name
        with contextlib.suppress(OSError), path.open("rb") as file:  # its writer lives, or has just placed it
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


def is_full(error: BaseException) -> bool:
    """Whether it says that there is no room."""
    match error:
        case OSError():
            return error.errno in FULL
        case sqlite3.OperationalError():
            return _is(error, SQLITE_FULL, "full")
    return False


def name_full(error: sqlite3.OperationalError, folder: Path) -> None:
    """Let an error of a database in that folder say that it is the full disk, where SQLite names it only vaguely.

    For whoever holds the database: further up nobody knows which disk to look at.
    """
    vague = _is(error, CANTOPEN, "unable to open") or _is(error, IOERR, "disk I/O error")
    if vague and (short := shortage(folder)):
        error.args = (f"{error}, {short}",)
        vars(error)["sqlite_errorcode"] = SQLITE_FULL


def is_locked(error: BaseException) -> bool:
    """Whether another program's lock was in the way. It passes, or a person ends that program."""
    return isinstance(error, sqlite3.OperationalError) and (
        _is(error, BUSY, "database is locked") or _is(error, LOCKED, "table is locked")
    )


def shortage(folder: Path) -> str:
    """What a disk has no more of, as a message, or nothing."""
    found = os.statvfs(folder)
    if found.f_files and not found.f_favail:  # some file systems count none
        return "no inode is free"
    return "" if found.f_bavail * found.f_frsize > MIN_FREE else "no room is left"


def _is(error: sqlite3.OperationalError, code: int, message: str) -> bool:
    """By the code, of which the low byte is the kind; Python 3.10 and tests that raise it give a message alone."""
    given: int | None = getattr(error, "sqlite_errorcode", None)
    return message in str(error) if given is None else given & 0xFF == code
