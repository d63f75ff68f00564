"""Let only one process or thread at a time work in a folder.

The lock is on the folder itself, so there is no lock file that a person could delete.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

POLL_SECONDS: Final = 0.1  # Seconds between two tries to get a lock.


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Wait for the lock of a folder, and hold the lock until the `with` block ends.

    The lock excludes other processes and other threads of this process. The kernel releases the lock when the
    process ends.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def held_if_free(folder: Path) -> Iterator[bool]:
    """Hold the lock of a folder until the `with` block ends; yield False at once if somebody else holds the lock."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        yield _locks(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def held_within(folder: Path, seconds: float) -> Iterator[bool]:
    """Hold the lock of a folder until the `with` block ends; yield False if it is not free within these seconds."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        end = time.monotonic() + seconds
        while not (is_ours := _locks(handle)) and time.monotonic() < end:
            time.sleep(POLL_SECONDS)
        yield is_ours
    finally:
        os.close(handle)


def _locks(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_held(folder: Path) -> bool:
    """Return at once whether another process or thread holds the lock now.

    If the folder does not exist, the result is False.
    """
    try:
        with held_if_free(folder) as is_free:
            return not is_free
    except FileNotFoundError:
        return False
