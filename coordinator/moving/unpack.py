"""Unpack the archive of a coordinator into the folder of a coordinator.

All files are first written into a folder beside the target, and each hash is checked. Then whole folders are renamed
into place; the folder that belongs to the coordinator itself comes last. While the folder beside the target exists,
no coordinator starts here, and the same archive completes the work. A receipt in the target names the archive.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from protofleet.coordinator.moving.archive import ArchiveReader, opened
from protofleet.coordinator.moving.manifest import VERSION_FILE, ArchivedFile, ArchiveManifest
from protofleet.coordinator.moving.place import RECEIPT, CoordinatorPlace, UnpackedRecord, encoded
from protofleet.coordinator.queue.queue_file import FORM
from protofleet.coordinator.spool.epochs import save_epochs
from protofleet.coordinator.spool.index import SPOOL
from protofleet.coordinator.spool.month import LEDGER, MonthLedger
from protofleet.protocol.security.keyfiles import PRIVATE, keep_to_ourselves
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.storage.folder_lock import held_if_free
from protofleet.protocol.storage.store import DamagedError

NEW, REPLACED, WHOLE = "new", "replaced", "archive"  # Names in the folder beside the target.
SQLITE: Final = b"SQLite format 3\0"  # The format number of a database is in the bytes 60 to 63.
OVER: Final = ".over"  # End of the name of this folder when the target is complete.


@dataclass(frozen=True, slots=True)
class Unpacked:
    digest: str
    manifest: ArchiveManifest
    is_new: bool  # False if the folder had been unpacked from this archive before.


def unpack(archive: Path, place: CoordinatorPlace, federation: str, disk: Disk | None = None) -> Unpacked:
    """Unpack an archive, unless it was unpacked here before; raise an error with one line if it cannot be used."""
    disk = disk or Disk()
    keep_to_ourselves(place.folder)
    with opened(archive) as reader:
        _demand_fit(archive, reader.manifest, place, federation)
        disk.make(place.runs)
        with _alone(place):
            disk.remove_folder(_over(place))
            if _has(place, reader.digest):
                return Unpacked(reader.digest, reader.manifest, is_new=False)
            if not _is_whole(place, archive, reader.digest):
                _demand_free(place, reader.manifest, disk)
                _extract(reader, place, disk)
            _put_in_place(reader.manifest, place, disk)
    return Unpacked(reader.digest, reader.manifest, is_new=True)


def _has(place: CoordinatorPlace, digest: str) -> bool:
    """Return whether the target was unpacked from this archive, and was not handed over since."""
    receipt = place.receipt
    is_here = not place.incoming.exists() and place.mark is None
    return is_here and receipt is not None and receipt.archive == digest


def _over(place: CoordinatorPlace) -> Path:
    return place.incoming.with_name(place.incoming.name + OVER)


@contextlib.contextmanager
def _alone(place: CoordinatorPlace) -> Iterator[None]:
    """Hold the locks that exclude another unpacking, a hand-over, and a coordinator that is running."""
    with contextlib.ExitStack() as stack:
        for folder in (place.runs, place.folder):
            if folder.is_dir() and not stack.enter_context(held_if_free(folder)):
                raise SettingsError(
                    f"another process uses {folder}; end it, or name another `folder` in the coordinator's file"
                )
        yield


def _demand_fit(archive: Path, manifest: ArchiveManifest, place: CoordinatorPlace, federation: str) -> None:
    if manifest.federation != federation:
        raise SettingsError(
            f"{archive} belongs to the federation {manifest.federation}, and the coordinator's file is for "
            f"{federation}; use the file of this federation"
        )
    if manifest.run != place.run:
        of, wanted = (f"the run {name}" if name else "a queue" for name in (manifest.run, place.run))
        raise SettingsError(
            f"{archive} holds {of}, and the coordinator's file is for {wanted}; use the file of the other machine"
        )


def _is_whole(place: CoordinatorPlace, archive: Path, digest: str) -> bool:
    """Return whether this archive is whole beside the target; raise SettingsError if another archive is."""
    path = place.incoming / WHOLE
    if not path.exists():
        return False
    if (found := path.read_text(errors="replace").strip()) != digest:
        raise SettingsError(
            f"{place} is only partly unpacked from another archive (SHA-256 {found[:16]}) than {archive}; start the "
            "coordinator with that archive"
        )
    return True


def _demand_free(place: CoordinatorPlace, manifest: ArchiveManifest, disk: Disk) -> None:
    """Raise SettingsError if the target has runs that the archive would replace, and that were not handed over."""
    mark = place.mark
    if mark is not None and manifest.epoch < mark.epoch:
        raise SettingsError(
            f"the archive has the epoch {manifest.epoch}, and {place} was handed over later, with the epoch "
            f"{mark.epoch}; use the newest archive"
        )
    may_go = {place.top, *mark.runs} if mark else set[str]()
    names = {place.top, *manifest.runs}
    if mark is None and not place.run:
        names |= {path.parent.name for path in place.runs.glob("*/coordinator")}
    held = sorted(name for name in names - may_go if _has_content(place.runs / name))
    if held:
        what = "a queue" if held[0] == place.top and not place.run else f"the run {held[0]}"
        raise SettingsError(
            f"{place.runs} holds {what} already; name another `folder` in the coordinator's file, or move "
            f"{place.runs / held[0]} away"
        )
    if (free := disk.free_bytes(place.runs)) < manifest.content_bytes:
        raise SettingsError(
            f"the archive holds {manifest.content_bytes / 1e6:.1f} MB, and the disk of {place.runs} has "
            f"{free / 1e6:.1f} MB"
        )


def _has_content(folder: Path) -> bool:
    return any(path.is_file() for path in folder.rglob("*")) if folder.is_dir() else folder.exists()


def _extract(reader: ArchiveReader, place: CoordinatorPlace, disk: Disk) -> None:
    """Write all files beside the target. If a file is wrong, remove them and raise an error."""
    disk.remove_folder(place.incoming)
    new = place.incoming / NEW
    new.mkdir(parents=True)
    try:
        reader.extract(lambda entry: _file_of(new, entry))
        (new / place.folder.relative_to(place.runs)).mkdir(parents=True, exist_ok=True)
        _check_formats(new, str(reader.path))
    except Exception:
        disk.remove_folder(place.incoming)
        raise
    receipt = new / place.folder.relative_to(place.runs) / RECEIPT
    receipt.write_bytes(encoded(UnpackedRecord(reader.digest)))
    for path in sorted(place.incoming.rglob("*"), reverse=True):
        disk.sync(path)
    disk.replace(place.incoming / WHOLE, reader.digest.encode(), PRIVATE)
    disk.sync(place.runs)


@contextlib.contextmanager
def _file_of(new: Path, entry: ArchivedFile) -> Iterator[BinaryIO]:
    path = new / entry.path
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        yield file


def _check_formats(new: Path, archive: str) -> None:
    """Raise an error if one of the databases is none, or if a later version has written it."""
    for form in (SPOOL, FORM):
        for path in new.rglob(form.file):
            head = path.open("rb").read(100) if path.is_file() else b""
            if not head.startswith(SQLITE):
                raise DamagedError(
                    f"{archive} cannot be unpacked: its {path.relative_to(new)} is no database"
                )
            if (found := int.from_bytes(head[60:64], "big")) > form.format:
                raise SettingsError(
                    f"{path.relative_to(new)} in {archive} has the format {found}, and this version knows formats up "
                    f"to {form.format}: a newer protofleet has written it; install that version here"
                )


def _put_in_place(manifest: ArchiveManifest, place: CoordinatorPlace, disk: Disk) -> None:
    """Rename the folders into place. This can be repeated after a kill at any point."""
    new, replaced = place.incoming / NEW, place.incoming / REPLACED
    disk.make(replaced)
    _merge_files(manifest, new, place, disk)
    # The folder of the coordinator itself comes last.
    for name in (*(run for run in manifest.runs if run != place.top), place.top):
        if not (new / name).exists():
            continue  # It is in place already.
        if (place.runs / name).exists():
            disk.rename(place.runs / name, replaced / name)
        disk.rename(new / name, place.runs / name)
        disk.sync(place.runs)
    disk.rename(place.incoming, _over(place))
    disk.sync(place.runs)
    disk.remove_folder(_over(place))


def _merge_files(manifest: ArchiveManifest, new: Path, place: CoordinatorPlace, disk: Disk) -> None:
    """Add the epochs, the ledger and the version of the settings to those that the target may have."""
    save_epochs(place.runs, manifest.federation, [*manifest.epochs, manifest.epoch])
    if (new / LEDGER).exists():
        with contextlib.closing(MonthLedger(place.runs, disk, False)) as ledger:
            ledger.merge(new / LEDGER)
    version = _version_in(new / VERSION_FILE)
    if version > _version_in(place.runs / VERSION_FILE):
        disk.replace(place.runs / VERSION_FILE, f"{version}\n".encode(), PRIVATE)


def _version_in(path: Path) -> int:
    text = path.read_text(errors="replace").strip() if path.exists() else ""
    return int(text) if text.isascii() and text.isdigit() else 0
