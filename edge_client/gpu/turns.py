"""Turns of processes on a shared GPU: each turn gets a part of the memory, in the order in which the turns arrive.

Each turn has a file in a folder that the processes share. The file exists from the arrival of the turn to its end.
The process of a turn keeps the file locked, so the turn ends when its process ends, even if the process is killed.

The file `free` in this folder has the number of bytes that are free while no process works. A new turn may get at
most this number minus the bytes that are promised to other turns. The driver's number of free bytes alone is not
enough: a working process takes its memory little by little, so at first the driver still counts most of this memory
as free.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protofleet.edge_client.gpu.accelerator import Accelerator
from protofleet.methods.contract.liveness import report_progress

POLL_SECONDS: Final = 0.05
# Bytes that must be free in addition to the need of a turn. Kernels that are loaded later, and gaps between blocks,
# take these bytes.
SPARE: Final = 256 << 20
SUFFIX: Final = ".turn"


@dataclass(frozen=True)
class Turn:
    number: int  # number of the turn in the order of arrival
    needs: int | None  # bytes that the turn needs; if None, the number is unknown, and no other turn may run
    working: bool  # true if the turn works, false if it waits


class Turns:
    def __init__(self, folder: Path, gpu: Accelerator, wait: Callable[[], None] | None = None) -> None:
        """Use the folder of the GPU's turns; `wait` is called between two attempts to begin a turn."""
        self._folder, self._gpu, self._wait = folder, gpu, wait or wait_a_moment

    @contextlib.contextmanager
    def turn(self, needs: int | None) -> Iterator[None]:
        with self._file() as (number, handle):
            while not self._admitted(number, handle, needs):
                self._wait()
            before = self._gpu.reserved_bytes()
            try:
                yield
            finally:
                self._note_free(number, self._gpu.reserved_bytes() - before)

    def _admitted(self, number: int, handle: int, needs: int | None) -> bool:
        with self._lock():
            others = self._others(number)
            admitted = self._fits(number, needs, others)
            _write(handle, needs, working=admitted)
            return admitted

    def _fits(self, number: int, needs: int | None, others: list[Turn]) -> bool:
        if any(other.number < number for other in others if not other.working):
            return False
        promised = [other.needs for other in others if other.working]
        if not promised:
            return True  # No other turn is running. So waiting would free no memory.
        free = self._free_while_idle()
        if needs is None or None in promised or free is None:
            return False
        # The driver also knows of memory that other users' processes have taken after `free` was written.
        return needs + SPARE <= min(free - sum(filter(None, promised)), self._gpu.free_bytes())

    def _note_free(self, number: int, kept: int) -> None:
        """Write the new number of free bytes to the file `free` at the end of a turn.

        `kept` is the number of bytes by which the reserved memory of this process has grown in the turn.
        """
        with self._lock():
            before = self._free_while_idle()
            if not any(other.working for other in self._others(number)):
                self._write_free(self._gpu.free_bytes())
            elif before is not None:
                self._write_free(before - kept)

    def _free_while_idle(self) -> int | None:
        """Return the bytes that are free while no process works; None before the end of the first turn."""
        try:
            return int((self._folder / "free").read_text())
        except (FileNotFoundError, ValueError):
            return None

    def _write_free(self, size: int) -> None:
        (self._folder / "free").write_text(str(size))

    @contextlib.contextmanager
    def _file(self) -> Iterator[tuple[int, int]]:
        """Make the file of a new turn, and yield the turn's number and the file's handle."""
        own_folder(self._folder)
        with self._lock():
            number = 1 + max((other.number for other in self._others(0)), default=0)
            path = self._folder / f"{number}{SUFFIX}"
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
            fcntl.flock(handle, fcntl.LOCK_EX)
            _write(handle, None, working=False)
        try:
            yield number, handle
        finally:
            with self._lock():
                path.unlink(missing_ok=True)
                os.close(handle)

    def _others(self, own: int) -> list[Turn]:
        """Return the other turns whose process is alive.

        Call this only while this process holds the lock of the folder. Otherwise a file may be incomplete.
        """
        found = []
        for path in self._folder.glob(f"*{SUFFIX}"):
            number = int(path.stem)
            if number == own:
                continue
            with path.open("rb") as file:
                if _is_locked(file.fileno()):
                    needs, working = json.loads(file.read())
                    found.append(Turn(number, needs, working))
                else:
                    path.unlink()
        return found

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        with (self._folder / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def wait_a_moment() -> None:
    report_progress()  # A process that waits for its turn is not stuck, so the watchdog must not end it.
    time.sleep(POLL_SECONDS)


def folder_of(gpu: Accelerator) -> Path:
    """Return the folder of this GPU's turns, which all processes of this user share.

    Processes of other users take no turns in this folder. But the driver reports free bytes, and these do not include
    the memory that processes of other users take.
    """
    return Path(tempfile.gettempdir()) / f"protofleet-gpu-{os.getuid()}" / gpu.name


def own_folder(folder: Path) -> None:
    """Make the folder if it is missing; raise PermissionError if the folder belongs to another user."""
    for one in (folder.parent, folder):
        with contextlib.suppress(FileExistsError):
            one.mkdir(mode=0o700)
        found = one.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise PermissionError(
                f"{one} is not a folder of this user; remove it, or set TMPDIR to another folder"
            )


def _write(handle: int, needs: int | None, *, working: bool) -> None:
    text = json.dumps([needs, working]).encode()
    os.ftruncate(handle, 0)
    os.pwrite(handle, text, 0)


def _is_locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
