"""Hold the lock of a coordinator's folder, so that two processes never use one folder at the same time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from protofleet.protocol.storage.folder_lock import held_if_free
from protofleet.runtime.command.errors import OutrankedError

LOCKS: Final = Path("/proc/locks")


@contextlib.contextmanager
def sole_use(folder: Path, take_over: bool = False) -> Iterator[None]:
    """Hold the lock while the `with` block lasts; raise OutrankedError if another process holds it.

    `take_over` is true if this process was to take over from the coordinator that leads.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with held_if_free(folder) as is_ours:
        if not is_ours:
            pid = holder_of(folder)
            who = f"another coordinator (pid {pid})" if pid else "another coordinator"
            way_out = "end it, or set another `folder` for this one"
            if take_over:
                way_out = (
                    "stop it with SIGTERM or with its service manager, and start this one again: --take-over is for "
                    "a coordinator of another host or of another `folder`"
                )
            raise OutrankedError(f"{who} uses {folder}; {way_out}")
        yield


def holder_of(folder: Path) -> int:
    """Return the process id of the process that holds the lock of a folder; 0 if the system does not tell it."""
    found = folder.stat()
    inode = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    with contextlib.suppress(OSError, ValueError):
        for line in LOCKS.read_text().splitlines():
            words = line.split()
            if "FLOCK" in words and "->" not in words and inode in words:
                return max(0, int(words[words.index(inode) - 1]))
    return 0
