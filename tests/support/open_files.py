"""The files that this process has open."""

import contextlib
import os
from pathlib import Path


def open_handles() -> int:
    """Return the number of open files, without their names, which would take longer."""
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - it runs after each test.


def open_files(folder: Path = Path()) -> list[str]:
    """Return the names of the open files below a folder, or of all open files when no folder is given.

    Without a folder the list also has files that other tests have left open; another thread or the garbage collector
    can close these while this function runs.
    """
    # When list() returns, the handle of the folder /proc/self/fd itself is already closed again.
    handles = list(Path("/proc/self/fd").iterdir())
    named = []
    for each in handles:
        # Only reading the name tells that the file is still open.
        with contextlib.suppress(FileNotFoundError):
            named.append(str(each.readlink()))
    return [name for name in named if folder == Path() or name.startswith(f"{folder}/")]
