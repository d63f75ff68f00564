"""Hand a coordinator over: end it, write its archive, and mark its folder as moved.

The order of the durable steps is: the whole archive under a temporary name; the mark in the folder, with the hash of
the archive; the final name of the archive. Before the mark, the coordinator can start here, and nothing reads the
temporary file. After it, the coordinator never starts here, and another hand-over completes the archive.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from protofleet.coordinator.moving.archive import (
    ArchiveReader,
    Source,
    check_archive,
    entry_of,
    partial_of,
    write_archive,
)
from protofleet.coordinator.moving.contents import DATABASES, Contents, contents_of
from protofleet.coordinator.moving.manifest import ArchiveManifest
from protofleet.coordinator.moving.place import MARK, CoordinatorPlace, MovedMark, encoded
from protofleet.coordinator.queue.queue_file import FORM, QUEUE_FILE
from protofleet.coordinator.spool.epochs import epoch_file, saved_epochs
from protofleet.coordinator.spool.index import INDEX_FILE, SPOOL, Index, read_only
from protofleet.protocol.security.keyfiles import PRIVATE, keep_to_ourselves
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.storage.folder_lock import held_within
from protofleet.protocol.storage.store import DamagedError

LOCK_SECONDS: Final = 90.0  # Seconds in which a coordinator must have ended.


class StillRunningError(RuntimeError):
    """The error for a coordinator that has not ended in time."""


@dataclass(frozen=True, slots=True)
class HandedOver:
    """A complete hand-over."""

    archive: Path
    digest: str
    manifest: ArchiveManifest
    left: tuple[str, ...] = ()  # Runs that are over and stay here.
    keys: tuple[Path, ...] = ()  # Files that hold a private key and stay here.


def hand_over(
    place: CoordinatorPlace, federation: str, archive: Path, end: Callable[[], None], with_ended: bool = False,
    disk: Disk | None = None, seconds: float = LOCK_SECONDS,
) -> HandedOver:  # fmt: skip
    """Write the archive of a coordinator and mark its folder as moved; `end` ends the coordinator if it is running.

    All that can be checked is checked before the coordinator ends.
    """
    disk, archive = disk or Disk(), archive.absolute()
    keep_to_ourselves(place.folder)
    if not place.folder.is_dir():
        raise SettingsError(f"no coordinator has run in {place}: there is no {place.folder}")
    if not archive.parent.is_dir():
        raise SettingsError(f"there is no folder {archive.parent}; make it, or name another place with --to")
    if place.mark is None and archive.exists():
        raise SettingsError(f"{archive} is there already; name another file with --to")
    _demand_room(contents_of(place, federation, with_ended), archive, disk)
    end()
    with held_within(place.folder, seconds) as is_ours:
        if not is_ours:
            raise StillRunningError(
                f"another process has held {place.folder} for {seconds:.0f} s: the coordinator has not ended, or "
                "another hand-over is in progress. Nothing has changed; end that process, and hand over again"
            )
        return _finished(place, archive, disk) or _made(place, federation, archive, with_ended, disk)


def _demand_room(contents: Contents, archive: Path, disk: Disk) -> None:
    needed, free = contents.size, disk.free_bytes(archive.parent)
    if needed > free:
        raise SettingsError(
            f"the archive needs {needed / 1e6:.1f} MB, and {archive.parent} has {free / 1e6:.1f} MB; name another "
            "place with --to"
        )


def _finished(place: CoordinatorPlace, archive: Path, disk: Disk) -> HandedOver | None:
    """Complete an earlier hand-over to this archive; return None if the archive has to be made."""
    if (mark := place.mark) is None:
        return None
    if archive.exists():
        reader = check_archive(archive)
        if reader.digest != mark.archive:
            raise SettingsError(f"{archive} is another archive; name another file with --to")
        return HandedOver(archive, reader.digest, reader.manifest)
    partial = partial_of(archive)
    with contextlib.suppress(FileNotFoundError, DamagedError):
        reader = check_archive(partial)
        if reader.digest == mark.archive:
            return _named(reader, archive, disk)
    return None


def _named(reader: ArchiveReader, archive: Path, disk: Disk) -> HandedOver:
    disk.rename(partial_of(archive), archive)
    disk.sync(archive.parent)
    return HandedOver(archive, reader.digest, reader.manifest)


def _made(
    place: CoordinatorPlace, federation: str, archive: Path, with_ended: bool, disk: Disk
) -> HandedOver:
    if archive.exists():
        raise SettingsError(f"{archive} is there already; name another file with --to")
    partial = partial_of(archive)
    with _copied_databases(place, federation, with_ended, archive, disk) as (contents, epoch):
        sources = [Source(entry_of(path, name), path) for name, path in contents.files.items()]
        manifest = ArchiveManifest(
            federation, place.run, tuple(contents.runs), epoch, _epochs(place, federation), int(time.time()),
            tuple(source.entry for source in sources),
        )  # fmt: skip
        write_archive(partial, manifest, sources, disk)
    reader = check_archive(partial)
    mark = MovedMark(reader.digest, str(archive), epoch, manifest.runs)
    disk.replace(place.folder / MARK, encoded(mark), PRIVATE)
    done = _named(reader, archive, disk)
    return replace(done, left=tuple(contents.left), keys=tuple(contents.keys))


@contextlib.contextmanager
def _copied_databases(
    place: CoordinatorPlace, federation: str, with_ended: bool, archive: Path, disk: Disk
) -> Iterator[tuple[Contents, int]]:
    """Yield the contents, with a copy in place of each database, and the epoch of the coordinator."""
    copies = archive.with_name(f".{archive.name}.databases")
    disk.remove_folder(copies)
    disk.make(copies)
    try:
        # Opening a database may change other files of its folder, so the databases come first.
        databases = {
            name: path
            for name, path in contents_of(place, federation, with_ended).files.items()
            if path.name in DATABASES
        }
        copied = {name: copies / str(number) for number, name in enumerate(databases)}
        for name, path in databases.items():
            _copy_database(path, copied[name], disk)
        contents = contents_of(place, federation, with_ended)
        contents.files = {name: copied.get(name, path) for name, path in contents.files.items()}
        index = copied[f"{place.run}/coordinator/{INDEX_FILE}" if place.run else f"{place.top}/{QUEUE_FILE}"]
        yield contents, _epoch_in(index, place)
    finally:
        disk.remove_folder(copies)


def _copy_database(path: Path, target: Path, disk: Disk) -> None:
    """Copy a database after a check; a damaged one is first replaced by its own copy, as at a start."""
    if path.name in (INDEX_FILE, QUEUE_FILE):
        index = Index(path.parent, disk, SPOOL if path.name == INDEX_FILE else FORM)
        with contextlib.closing(index):
            index.db.execute("VACUUM INTO ?", (str(target),))
        return
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("VACUUM INTO ?", (str(target),))


def _epoch_in(copy: Path, place: CoordinatorPlace) -> int:
    """Return the epoch of the last coordinator of this place, from the copy of its database; 0 if there was none."""
    with contextlib.closing(read_only(copy)) as db:
        row = db.execute(f"SELECT epoch FROM {(SPOOL if place.run else FORM).owner}").fetchone()
    return int(row[0]) if row else 0


def _epochs(place: CoordinatorPlace, federation: str) -> tuple[int, ...]:
    with contextlib.suppress(ValueError, OSError):
        return tuple(saved_epochs(epoch_file(place.runs, federation)))
    return ()  # The next start says why the file cannot be read.
