"""The files that an archive of a coordinator gets: the folder of the queue, and the folders of its runs.

Keys never belong to an archive. The folders that `protofleet run` keeps beside the coordinator's are left out too.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from protofleet.coordinator.moving.archive import header_of
from protofleet.coordinator.moving.manifest import BESIDE_RUNS, NEVER_PACKED, problem_of
from protofleet.coordinator.moving.place import CoordinatorPlace
from protofleet.coordinator.queue.queue_file import FORM, QUEUE_FILE
from protofleet.coordinator.queue.states import QueuedRun
from protofleet.coordinator.spool.index import INDEX_FILE, SPOOL, RunMismatchError, index_of, read_only
from protofleet.coordinator.spool.month import LEDGER
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.storage.disk import NEW
from protofleet.protocol.storage.store import SPARE

DATABASES: Final = frozenset({INDEX_FILE, QUEUE_FILE, LEDGER})
# A start makes the copies of the databases again. The other files belong to open databases.
MADE_AGAIN: Final = frozenset({SPOOL.copy, FORM.copy})
OF_A_DATABASE: Final = ("-wal", "-shm", "-journal")
OF_OTHERS: Final = frozenset({"enrolled", "devices", "slots", "logs"})  # Folders of `protofleet run`.
KEY: Final = b"PRIVATE KEY-----"
MOST_KEY_BYTES: Final = 1 << 20  # Larger files hold no keys.


@dataclass
class Contents:
    """The files of an archive, by their paths in it, and what is left out."""

    runs: list[str] = field(default_factory=list)
    files: dict[str, Path] = field(default_factory=dict)
    keys: list[Path] = field(default_factory=list)  # Files that hold a private key.
    left: list[str] = field(default_factory=list)  # Runs that are over and are left out.
    size: int = 0  # Number of bytes of all files.


def contents_of(place: CoordinatorPlace, federation: str, with_ended: bool) -> Contents:
    """Return what belongs into the archive; raise an error with one line if something cannot be moved.

    The coordinator may still be running, so a file may disappear meanwhile.
    """
    found = Contents()
    if place.run:
        if not index_of(place.runs / place.run).exists():
            raise SettingsError(f"{place} holds no run that has begun; name the file of its coordinator")
        found.runs = [place.run]
    else:
        rows = [row for row in _rows(place, federation) if (place.runs / row.name).is_dir()]
        # A run that has failed can be submitted again, and then goes on from its folder.
        taken = [row for row in rows if with_ended or not row.closed or row.may_come_again]
        found.runs = sorted(row.name for row in taken)
        found.left = sorted({row.name for row in rows} - set(found.runs))
    for top in dict.fromkeys((place.top, *found.runs)):
        for name, path in _files(place.runs / top, top):
            _add(found, name, path)
    for name in BESIDE_RUNS:
        if (path := place.runs / name).is_file():
            _add(found, name, path)
    return found


def _rows(place: CoordinatorPlace, federation: str) -> list[QueuedRun]:
    path = place.folder / QUEUE_FILE
    if not path.exists():
        raise SettingsError(f"{place.runs} has no queue of runs; name the file of its coordinator")
    with contextlib.closing(read_only(path)) as db:
        owner = db.execute("SELECT name FROM service").fetchone()
        if owner and owner[0] != federation:
            raise RunMismatchError(
                f"{place} belongs to the federation {owner[0]}, and the file is for {federation}; name the file of "
                "its coordinator"
            )
        return [QueuedRun(*row) for *row, _ in db.execute("SELECT * FROM runs ORDER BY number")]


def _files(top: Path, name: str) -> Iterator[tuple[str, Path]]:
    """Yield the files in a folder with their paths in the archive, in a fixed order."""
    for folder, folders, files in os.walk(top):
        inner = Path(folder).relative_to(top)
        if inner == Path():
            folders[:] = [one for one in folders if one not in OF_OTHERS]
        folders.sort()
        for one in folders:
            if (Path(folder) / one).is_symlink():
                raise SettingsError(
                    f"{Path(folder) / one} is a link to a folder, which an archive cannot hold; put the folder in "
                    "its place, or move the link away"
                )
        for one in sorted(files):
            path = Path(folder) / one
            if path.is_file() and not _is_left_out(one):  # Sockets are no files.
                yield "/".join((name, *inner.parts, one)), path


def _is_left_out(name: str) -> bool:
    is_unfinished = name.endswith((SPARE, *OF_A_DATABASE)) or (name.startswith(".") and name.endswith(NEW))
    return is_unfinished or name in MADE_AGAIN or name in NEVER_PACKED


def _add(found: Contents, name: str, path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        size = path.stat().st_size
        if size <= MOST_KEY_BYTES and KEY in path.read_bytes():
            found.keys.append(path)
            return
        if problem := problem_of(name):
            raise SettingsError(f"{path} cannot be put into an archive: {problem}; rename it or move it away")
        header_of(name, size)
        found.files[name] = path
        found.size += size
