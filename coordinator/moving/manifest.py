"""The manifest of an archive: whose it is, and the size and the SHA-256 of each file.

The SHA-256 of the manifest identifies the archive. An archive may come from anybody, so each value is checked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from protofleet.coordinator.moving.place import MARK, RECEIPT, CoordinatorPlace
from protofleet.coordinator.queue.queue_file import QUEUE_FILE
from protofleet.coordinator.spool.index import INDEX_FILE
from protofleet.coordinator.spool.month import LEDGER
from protofleet.protocol.settings.reader import SettingsError, decode
from protofleet.protocol.storage.store import DamagedError
from protofleet.protocol.wire.names import valid_name

FORMAT: Final = 1
VERSION_FILE: Final = "settings.version"  # The highest version of signed settings that was used.
BESIDE_RUNS: Final = (LEDGER, VERSION_FILE)  # Files beside the folders of the runs.
MOST_BYTES: Final = 64 << 20  # Largest number of bytes of a manifest.
MOST_FILES: Final = 200_000
MOST_NAME: Final = 255  # Largest number of bytes of the name of a file or folder.
MOST_EPOCH: Final = 1 << 62
DIGEST_DIGITS: Final = 64
NEVER_PACKED: Final = frozenset({MARK, RECEIPT})


@dataclass(frozen=True)
class ArchivedFile:
    path: str
    """Path in the folder of all runs, with / between the names."""
    size: int
    """Number of bytes."""
    sha256: str
    """SHA-256 of the content, as hexadecimal digits."""


@dataclass(frozen=True)
class ArchiveManifest:
    federation: str
    """Name of the federation."""
    run: str
    """Name of the coordinator's run; empty for a coordinator with a queue."""
    runs: tuple[str, ...]
    """Names of all runs in the archive."""
    epoch: int
    """Highest epoch of the coordinator."""
    epochs: tuple[int, ...]
    """Epochs of all coordinators of the federation on the machine of the archive."""
    made: int
    """Unix time of the archive."""
    files: tuple[ArchivedFile, ...]
    """All files, in the order of the archive."""
    format: int = FORMAT
    """Number of the format of the archive."""

    @property
    def content_bytes(self) -> int:
        return sum(file.size for file in self.files)

    def encode(self) -> bytes:
        return json.dumps(asdict(self), allow_nan=False).encode()


def digest_of(manifest: bytes) -> str:
    """Return the SHA-256 that identifies an archive."""
    return hashlib.sha256(manifest).hexdigest()


def read_manifest(data: bytes, where: str) -> ArchiveManifest:
    """Return the manifest in these bytes; raise an error with one line if it cannot be used."""
    try:
        table: Any = json.loads(data)
    except (ValueError, RecursionError):
        raise DamagedError(f"{where} is damaged: its manifest is not JSON") from None
    found = table.get("format") if isinstance(table, dict) else None
    if isinstance(found, int) and found > FORMAT:
        raise SettingsError(
            f"{where} has the format {found}, and this version knows formats up to {FORMAT}: a newer protofleet has "
            "written it; install that version here"
        )
    try:
        manifest = decode(ArchiveManifest, table)
        _check(manifest)
    except ValueError as error:
        raise DamagedError(f"{where} cannot be unpacked: {str(error)[:300]}") from None
    return manifest


def _check(manifest: ArchiveManifest) -> None:
    for name in (manifest.federation, *manifest.runs, *filter(None, [manifest.run])):
        valid_name(name)
    if manifest.run and manifest.runs != (manifest.run,):
        raise ValueError(f"its run is {manifest.run}, but it names other runs")
    if wrong := [epoch for epoch in (manifest.epoch, *manifest.epochs) if not 0 <= epoch < MOST_EPOCH]:
        raise ValueError(f"it names the epoch {wrong[0]}")
    if len(manifest.files) > MOST_FILES:
        raise ValueError(f"it has {len(manifest.files):,} files; the limit is {MOST_FILES:,}")
    place = CoordinatorPlace(Path(), manifest.run)
    tops = {place.top, *manifest.runs}
    for file in manifest.files:
        _check_file(file, tops)
    _check_paths(file.path for file in manifest.files)
    index = f"{manifest.run}/coordinator/{INDEX_FILE}" if manifest.run else f"{place.top}/{QUEUE_FILE}"
    if index not in (file.path for file in manifest.files):
        raise ValueError(f"it has no {index}")


def _check_file(file: ArchivedFile, tops: set[str]) -> None:
    if problem := problem_of(file.path):
        raise ValueError(f"{file.path[:99]!r} is no path of a file in it: {problem}")
    top, _, rest = file.path.partition("/")
    if top not in tops if rest else top not in BESIDE_RUNS:
        raise ValueError(f"{file.path[:99]!r} belongs to none of its runs")
    if file.size < 0:
        raise ValueError(f"{file.path[:99]!r} has {file.size} bytes")
    if len(file.sha256) != DIGEST_DIGITS or set(file.sha256) - set("0123456789abcdef"):
        raise ValueError(f"{file.path[:99]!r} has no SHA-256")


def problem_of(path: str) -> str:
    """Return why a path cannot be that of a file in an archive, or ""."""
    parts = path.split("/")
    if not all(parts):
        return "it begins or ends with /, or has // in it"
    if {".", ".."} & set(parts):
        return "it has . or .. in it"
    if not path.isprintable() or "\\" in path:
        return "it has characters that are not allowed"
    if parts[-1] in NEVER_PACKED:
        return "this file is never moved"
    if max(len(part.encode("utf-8", "replace")) for part in parts) > MOST_NAME:
        return f"a name in it has more than {MOST_NAME} bytes"
    return ""


def _check_paths(paths: Iterable[str]) -> None:
    """Raise ValueError if a path appears twice, or is the folder of another path."""
    files, folders = set[str](), set[str]()
    for path in paths:
        if path in files:
            raise ValueError(f"it has {path[:99]!r} twice")
        files.add(path)
        folders.update(str(parent) for parent in PurePosixPath(path).parents)
    if both := files & folders:
        raise ValueError(f"{min(both)[:99]!r} is a file and a folder in it")
