"""Make data durable on the disk.

A crash can happen before or after each step that makes data durable. All these steps are methods of Disk, so
that a test can replace them.
"""

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

NEW: Final = ".new"  # end of the name of a file that is being written
MOST_SWEPT: Final = 64  # largest number of target files that a Disk remembers
MIN_FREE: Final = 1 << 20  # bytes; a disk with less free space counts as full
# File systems on the machine itself. Other file systems may be on a network, or on the host of a virtual
# machine.
LOCAL: Final = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "bcachefs", "tmpfs", "overlay"}
)
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# Error codes of SQLite. The module sqlite3 of Python 3.10 does not define these names.
BUSY, LOCKED, IOERR, SQLITE_FULL, CANTOPEN = 5, 6, 10, 13, 14


class Disk:
    """The steps that make data durable.

    Each service gets a Disk as an argument; `Disk()` is the real disk.

    Each step first calls `before_step(step, what)`. A subclass that raises an error in this method simulates
    a process that is killed just before the step. A subclass that overrides a step simulates another disk,
    for example a disk that loses data or is full:

    sync      a file's bytes, or the names in a folder, survive a power cut after this step
    make      a folder is made, and its name survives a power cut
    rename    a whole file takes the place of the target
    link      a file keeps its name and gets a second name; if another file had the second name, it is replaced
    point     a symbolic link gets another target
    overwrite new bytes take the place of the same number of old bytes, in the file itself
    remove    a file is removed if it exists, or a folder is removed with all its content
    commit    an SQLite transaction ends: all of its changes survive, or none
    merge     the content of an SQLite log is moved into the main file of the database
    publish   a frame is sent; only a simulated transport reports this step

    Data that is written between two steps is not durable, and no code may rely on it. Programs call
    `free_bytes` before new work. With `durable=False` no fsync is made. `durable=False` is for simulations,
    and for data that a replay makes again.
    """

    def __init__(self, durable: bool = True) -> None:
        self.durable = durable
        self._swept: set[Path] = set()  # targets whose left-over new files were removed already

    def before_step(self, step: str, what: Path | str) -> None:
        """Do nothing; a subclass may act before a step."""

    def sync(self, path: Path) -> None:
        self.before_step("sync", path)
        if self.durable:
            sync(path)

    def make(self, folder: Path, within: Path | None = None) -> None:
        """Make a folder and all missing parent folders; raise FileNotFoundError if the folder `within` is missing."""
        if folder.is_dir():
            return
        if folder == within:
            raise FileNotFoundError(errno.ENOENT, "the folder was moved or deleted", str(within))
        self.make(folder.parent, within)
        self.before_step("make", folder)
        folder.mkdir(exist_ok=True)
        self.sync(folder.parent)

    def rename(self, source: Path, target: Path) -> None:
        self.before_step("rename", target)
        source.replace(target)

    def place(self, source: Path, target: Path, durable: bool = True) -> None:
        """Rename a complete file, link or folder; the source and the target must be in the same folder.

        A file or link replaces the target. A folder needs a target that does not exist.
        """
        if durable:
            self.sync(source)
        self.rename(source, target)
        if durable:
            self.sync(target.parent)

    def replace(self, target: Path, data: bytes, mode: int | None = None, durable: bool = True) -> None:
        """Replace a file's content as `fresh` does, with bytes that are in memory."""
        with self.new_file(target, mode, data) as path:
            self.place(path, target, durable)

    @contextlib.contextmanager
    def fresh(self, target: Path, mode: int | None = None, durable: bool = True) -> Iterator[Path]:
        """Yield the path of a new file for the caller to write; the file replaces the target if nothing fails.

        A reader of the target sees the old or the new content, also after a power cut. With `durable=False`,
        both contents may be lost in a power cut. So `durable=False` is for content that is checked when it is
        read, or that can be made again.
        """
        with self.new_file(target, mode) as path:
            yield path
            self.place(path, target, durable)

    @contextlib.contextmanager
    def new_file(self, target: Path, mode: int | None = None, content: bytes = b"") -> Iterator[Path]:
        """Make a new file in the target's folder, for use with `place`.

        No other thread or process writes this file.

        With a mode, the file never has more permissions than this mode, not even for a moment. Without a
        mode, the umask decides. The file is removed if an exception is raised. If the process is killed, the
        file stays, and the next call of this method for the same target removes it.
        """
        self._sweep(target)
        path, handle = _locked_file(target, 0o666 if mode is None else mode)
        try:
            if mode is not None:
                os.fchmod(handle, mode)  # the umask may have removed permissions of the mode
            _write(handle, content)
            yield path
        except Exception:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(handle)

    def _sweep(self, target: Path) -> None:
        """Remove unfinished new versions of a file, which killed processes have left next to it.

        This is done only once for each target.
        """
        if target in self._swept:
            return
        _remove_left_over(target)
        if len(self._swept) >= MOST_SWEPT:
            self._swept.clear()
        self._swept.add(target)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name, as a hard link.

        A hard link is safer than two renames of the same file. After a power cut between the two renames, the
        file may have no durable name. Then the file is lost.
        """
        self.before_step("link", target)
        spare = target.with_suffix(".spare")
        spare.unlink(missing_ok=True)
        try:
            os.link(source, spare)
        except OSError:  # FAT has no hard links
            spare.write_bytes(source.read_bytes())
            if self.durable:
                sync(spare)
        spare.replace(target)

    def point(self, link: Path, target: str, durable: bool = True) -> None:
        """Make a symbolic link point to another target.

        A program that opens the link opens the old target or the new target. `target` is relative to the
        link's folder.
        """
        self.before_step("point", link)
        spare = link.with_name(f".{link.name}{NEW}")
        spare.unlink(missing_ok=True)
        spare.symlink_to(target)
        spare.replace(link)
        if durable:
            self.sync(link.parent)

    def overwrite(self, path: Path, data: bytes) -> None:
        """Replace the bytes of a file without making a new file.

        If the process is killed, the file contains either all new bytes or none of them. After a power cut, the file
        may contain only a part of the new bytes. So this method is for content that is checked when it is read, and
        whose loss does no harm. `data` has the same number of bytes as the file.
        """
        self.before_step("overwrite", path)
        handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            write_at(handle, data, 0)
        finally:
            os.close(handle)

    def remove(self, path: Path) -> None:
        self.before_step("remove", path)
        path.unlink(missing_ok=True)

    def remove_folder(self, folder: Path) -> None:
        """Remove a folder and its content.

        If the process ends during the removal, a part of the content stays. So rename the folder first to a
        name that no program reads.
        """
        self.before_step("remove", folder)
        if folder.is_dir():
            shutil.rmtree(folder)

    def commit(self, db: sqlite3.Connection, path: Path, durable: bool = True) -> None:
        """Commit an SQLite transaction.

        `durable=False` is for a transaction that may be lost in a power cut. Whether it can be lost depends
        on the settings of the database.
        """
        self.before_step("commit", path)
        db.execute("COMMIT")

    def merge_log(self, db: sqlite3.Connection, path: Path) -> None:
        """Merge the log of a database in WAL mode into the main file of the database.

        The log is not merged while another program reads the database.
        """
        self.before_step("merge", path)
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def is_local(self, folder: Path) -> bool:
        """Return whether all programs that open files in the folder run on this machine.

        Programs on different machines cannot share memory through files.
        """
        return file_system(folder) in LOCAL

    def free_bytes(self, folder: Path) -> int:
        """Return how many bytes can be written in this folder; 0 if the disk counts as full."""
        return max(0, shutil.disk_usage(folder).free - MIN_FREE)


class NoRoom(Rejected):
    """The error for data that does not fit on the disk at present."""

    def __init__(self, message: str) -> None:
        super().__init__(Reason.NO_ROOM, message)


def no_room(error: OSError) -> Exception:
    """Return NoRoom if the error says that the disk is full, otherwise the error itself."""
    return NoRoom(f"the disk is full: {error.strerror}") if error.errno in FULL else error


def sync(path: Path) -> None:
    """Make a file's bytes, or the names in a folder, survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_whole(path: Path, content: bytes | bytearray | memoryview) -> None:
    """Write a whole file, as `Path.write_bytes` does, but with half as many calls to the kernel.

    Fewer calls are faster, because at each call another thread may take over the interpreter.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        _write(handle, content)
    finally:
        os.close(handle)


def write_at(handle: int, content: bytes | bytearray | memoryview, start: int) -> None:
    """Write all bytes of the content into an open file, from the position `start`.

    If the disk has room for only a part of the bytes, os.pwrite writes this part and raises no error. The call for
    the other bytes then raises the error.
    """
    rest = memoryview(content)
    while rest:
        written = os.pwrite(handle, rest, start)
        rest, start = rest[written:], start + written


def file_system(folder: Path, table: Path = Path("/proc/self/mountinfo")) -> str:
    """Return the Linux name of the file system that contains a folder, or "" if it is not known."""
    try:
        mounts = [line.split(" - ") for line in table.read_text().splitlines()]
    except OSError:
        return ""
    path, found, deepest = folder.resolve(), "", -1
    for left, right in mounts:
        # The file mountinfo has \\040 in place of a space.
        point = Path(left.split()[4].encode().decode("unicode_escape"))
        # A later mount at the same place hides earlier mounts.
        if path.is_relative_to(point) and len(point.parts) >= deepest:
            found, deepest = right.split()[0], len(point.parts)
    return found


def _locked_file(target: Path, mode: int) -> tuple[Path, int]:
    """Make a new file and lock it; return its path and handle.

    The lock shows that the writer still runs. The kernel releases the lock when the process ends.
    """
    while True:
        path = target.parent / f".{target.name}.{secrets.token_hex(4)}{NEW}"
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
        fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            return path, handle
        # Another process has removed the file before this process locked it. That process has mistaken the unlocked
        # file for a file of an ended process.
        os.close(handle)


def _write(handle: int, content: bytes | bytearray | memoryview) -> None:
    rest = memoryview(content)
    while rest:  # if the disk becomes full, one call writes only a part of the bytes
        rest = rest[os.write(handle, rest) :]


def _remove_left_over(target: Path) -> None:
    begin = f".{target.name}."
    for name in os.listdir(target.parent):  # noqa: PTH208 - a glob takes ten times as long
        if not (name.startswith(begin) and name.endswith(NEW)):
            continue
        path = target.parent / name
        # An error means that the writer still runs, or has just renamed the file.
        with contextlib.suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


def is_full(error: BaseException) -> bool:
    """Return whether a full disk caused the error."""
    match error:
        case OSError():
            return error.errno in FULL
        case sqlite3.OperationalError():
            return _is(error, SQLITE_FULL, "full")
    return False


def name_full(error: sqlite3.OperationalError, folder: Path) -> None:
    """Mark an SQLite error as caused by a full disk, if the folder's disk is full.

    Only the code that opened the database knows the folder, so that code calls this function.
    """
    vague = _is(error, CANTOPEN, "unable to open") or _is(error, IOERR, "disk I/O error")
    if vague and (short := shortage(folder)):
        error.args = (f"{error}, {short}",)
        vars(error)["sqlite_errorcode"] = SQLITE_FULL


def is_locked(error: BaseException) -> bool:
    """Return whether the lock of another program caused the error.

    Such an error is temporary: the other program releases the lock, or a person ends that program.
    """
    return isinstance(error, sqlite3.OperationalError) and (
        _is(error, BUSY, "database is locked") or _is(error, LOCKED, "table is locked")
    )


def shortage(folder: Path) -> str:
    """Return a message if the disk has no space or no inodes left, otherwise ""."""
    found = os.statvfs(folder)
    if found.f_files and not found.f_favail:  # some file systems do not count inodes
        return "no inode is free"
    return "" if found.f_bavail * found.f_frsize > MIN_FREE else "no room is left"


def _is(error: sqlite3.OperationalError, code: int, message: str) -> bool:
    """Return whether an SQLite error has this code.

    The low byte of the error's code is compared. The error has no code in Python 3.10, and in tests that raise
    the error. Then the message is compared.
    """
    given: int | None = getattr(error, "sqlite_errorcode", None)
    return message in str(error) if given is None else given & 0xFF == code
