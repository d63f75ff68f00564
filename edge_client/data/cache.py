"""A cache of generated data, with one .npz file for each data set; each reading checks the checksum of the data."""

from __future__ import annotations

import fcntl
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from protofleet.edge_client.data.errors import DataError
from protofleet.edge_client.data.fingerprint import fingerprint
from protofleet.edge_client.data.images.resize import Pixels
from protofleet.protocol.storage.disk import Disk

Arrays = Mapping[str, Pixels]
ELSEWHERE = "give a folder that can be written, by data.root or by the environment variable PROTOFLEET_DATA"


def default_folder() -> Path:
    """Return the folder $PROTOFLEET_DATA if it is set, or else ~/.cache/protofleet."""
    try:
        return Path(os.environ.get("PROTOFLEET_DATA") or Path.home() / ".cache" / "protofleet")
    except RuntimeError:
        # In a container, the user may be missing in /etc/passwd. Then the home folder is unknown.
        raise DataError(f"this user has no home folder in which data could be stored; {ELSEWHERE}") from None


def checksum(arrays: Arrays) -> str:
    return fingerprint(*(arrays[name] for name in sorted(arrays)))


def cached(path: Path, expected: str, build: Callable[[], Arrays]) -> Arrays:
    """Return the arrays in the file, and build them first if the file is missing or damaged.

    If several processes need the file at the same time, one of them builds it, and the others wait. `build`
    must return the arrays with the checksum `expected`, or raise an error.
    """
    if (arrays := _read(path, expected)) is not None:
        return arrays
    with _lock(path.with_suffix(".lock")):
        if (arrays := _read(path, expected)) is not None:
            return arrays
        arrays = build()
        _write(path, arrays)
        return arrays


def _read(path: Path, expected: str) -> Arrays | None:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        return None
    return arrays if checksum(arrays) == expected else None


def _write(path: Path, arrays: Arrays) -> None:
    """Write the file so that other processes never see an incomplete file.

    The file is not synced to the disk. If a power cut damages the file, its checksum is wrong, and the next
    reader builds the file again.
    """
    with _write_errors(path), Disk().fresh(path, durable=False) as fresh, fresh.open("wb") as file:
        np.savez(file, **dict[str, Any](arrays))


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Wait for the exclusive lock of this file, and hold the lock while the context lasts.

    The kernel releases the lock when the process ends, even if the process is killed.
    """
    with _write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(f"{path} cannot be written ({error}); {ELSEWHERE}") from error
