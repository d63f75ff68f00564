"""One at a time in a folder: by a lock on the folder itself, which takes no file that somebody could delete."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Of processes, and of threads of this one; it waits. The kernel releases it with the process."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def is_held(folder: Path) -> bool:
    """At this moment, by anybody else; asked without waiting. A folder that has gone is nobody's."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(handle)
