"""Turns of the devices of one machine: the number of slots is the largest number of devices that work at once.

If more devices than cores worked at once, they would not finish sooner, and each of them would need memory for a
batch. A slot is a file that the working process keeps locked. So the slot is free when its process has ended, even if
the process was killed. The watchdog of a stuck process ends the process. If a process with a slot is
stopped (SIGSTOP), other devices work without waiting for a slot.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from protofleet.methods.contract.liveness import report_progress
from protofleet.protocol.settings.bounds import Within
from protofleet.protocol.settings.reader import demand_within

SHORTEST: Final = 0.001  # shortest time, in seconds, between two attempts to take a slot
LONGEST: Final = 0.02
SHARE: Final = 0.125  # pause until the next attempt, as a part of the time that the device has waited so far


@dataclass(frozen=True)
class Slots:
    """The [slots] table: how many devices of this machine may work at the same time."""

    folder: str = ""
    """Folder that the devices have in common; empty means that no device waits for others."""
    number: Annotated[int, Within(1, 1024)] = 1
    """Number of devices with this folder that may work at once."""

    def __post_init__(self) -> None:
        demand_within(self)

    @contextlib.contextmanager
    def taken(self) -> Iterator[float]:
        """Hold a slot during the `with` block, and yield the seconds for which the device has waited for the slot."""
        begun, waited = time.monotonic(), 0.0
        Path(self.folder).mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as files:
            slots = [_opened(Path(self.folder) / f"{i}.slot", files) for i in range(self.number)]
            while not (any(map(_is_ours, slots)) or any(map(_is_of_a_stopped_process, slots))):
                report_progress()  # A process that waits for a slot is not stuck, so the watchdog must not end it.
                time.sleep(min(LONGEST, max(SHORTEST, SHARE * waited)))
                waited = time.monotonic() - begun
            yield waited


def _opened(path: Path, files: contextlib.ExitStack) -> int:
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    files.callback(os.close, handle)
    return handle


def _is_ours(slot: int) -> bool:
    try:
        fcntl.flock(slot, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    os.ftruncate(slot, 0)
    os.pwrite(slot, str(os.getpid()).encode(), 0)
    return True


def _is_of_a_stopped_process(slot: int) -> bool:
    """Return whether the slot's process is stopped; on systems other than Linux, return False."""
    try:
        line = Path(f"/proc/{int(os.pread(slot, 20, 0))}/stat").read_text()
    except (OSError, ValueError):  # The process has just ended, or no process has used this slot yet.
        return False
    return line.rpartition(")")[2].split()[0] == "T"
