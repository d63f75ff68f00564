"""A cache of generated data: one .npz file for each data set, checked at each reading."""

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
    """Return $PROTOFLEET_DATA, else ~/.cache/protofleet."""
    try:
        return Path(os.environ.get("PROTOFLEET_DATA") or Path.home() / ".cache" / "protofleet")
    except RuntimeError:  # a user without an entry in the list of users, as in containers
        raise DataError(f"this user has no home folder to keep data in; {ELSEWHERE}") from None


def checksum(arrays: Arrays) -> str:
    return fingerprint(*(arrays[name] for name in sorted(arrays)))


def cached(path: Path, expected: str, build: Callable[[], Arrays]) -> Arrays:
    """Return the arrays in the file, and build them first if the file is missing or damaged.

    If several processes need the file at the same time, one builds it and the others wait. `build` returns
    the expected arrays or raises.
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
    """Write the file so that other processes never see half of it.

    The file is not synced: if a power cut damages it, it fails its check and is built again.
    """
    with _write_errors(path), Disk().fresh(path, durable=False) as fresh, fresh.open("wb") as file:
        np.savez(file, **dict[str, Any](arrays))


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold a lock for one process at a time.

    The kernel releases the lock when a process dies, however it dies.
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
