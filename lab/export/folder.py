"""Make a folder that appears completely or not at all.

The folder is written next to its final place, synced and renamed. After a failure, no folder is left. Several
exports may write a folder for one place at the same time, and the last one stays. A lock on the parent folder
lets only one export at a time begin, or rename its folder. Each export holds a lock on its own folder.
Therefore the others do not delete this folder as the remains of a killed export.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from protofleet.methods.served.card_file import CARD
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.storage.disk import is_full, sync
from protofleet.protocol.storage.folder_lock import held, is_held
from protofleet.runtime.command.errors import RunError

NEW, OLD = ".new", ".old"
MODE: Final = 0o777  # The mode before the umask, as for any folder.


def require_place(place: Path) -> None:
    """Raise an error if the folder cannot be used, before slow work begins.

    Nothing is made here, because the export may still be refused.
    """
    if place.is_symlink() or (place.exists() and not place.is_dir()):
        raise SettingsError(f"{place} is there and is no folder; name another one with --out")
    # An earlier export has a card and may be replaced.
    if place.is_dir() and any(place.iterdir()) and not (place / CARD).is_file():
        raise SettingsError(f"{place} is there, and holds no earlier export; name another folder with --out")
    there = next(folder for folder in place.absolute().parents if os.path.lexists(folder))
    if not there.is_dir():
        raise RunError(f"{place.parent} cannot be made: {there} is no folder; name another folder with --out")
    if not os.access(there, os.W_OK | os.X_OK):
        raise RunError(f"{there} cannot be written to by this user; name another folder with --out")


@contextlib.contextmanager
def new_folder(place: Path) -> Iterator[Path]:
    """Yield a new folder to fill. It replaces an earlier export if nothing fails."""
    made = [folder for folder in place.parents if not folder.exists()]  # The innermost folder is first.
    lock = contextlib.ExitStack()  # The lock ends when the folder has been renamed or removed.
    fresh = _fresh_beside(place, lock)
    try:
        with lock:
            yield fresh
            for file in fresh.iterdir():
                sync(file)
            fresh.chmod(MODE & ~_umask())
            sync(fresh)
            with held(place.parent):
                _put(fresh, place)
                sync(place.parent)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        with contextlib.suppress(OSError):  # Another export may have put its folder there.
            for folder in made:
                folder.rmdir()
        raise


def _fresh_beside(place: Path, lock: contextlib.ExitStack) -> Path:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with held(place.parent):
            _sweep(place)
            fresh = Path(tempfile.mkdtemp(prefix=f".{place.name}.", suffix=NEW, dir=place.parent))
            lock.enter_context(held(fresh))
        return fresh
    except OSError as error:
        if is_full(error):
            raise
        raise RunError(f"{place} cannot be made: {error.strerror}; name another folder with --out") from None


def _put(fresh: Path, place: Path) -> None:
    if not place.exists():
        fresh.rename(place)
        return
    old = fresh.with_suffix(OLD)
    place.rename(old)
    try:
        fresh.rename(place)
    except OSError:
        old.rename(place)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _sweep(place: Path) -> None:
    """Remove the folders that a killed export has left.

    If an export was killed between its two renames, the earlier export gets its place back.
    """
    for old in place.parent.glob(f".{place.name}.*{OLD}"):
        if not place.exists():
            old.rename(place)
        shutil.rmtree(old, ignore_errors=True)
    for new in place.parent.glob(f".{place.name}.*{NEW}"):
        if not is_held(new):
            shutil.rmtree(new, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
