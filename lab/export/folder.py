"""Make a folder that appears completely or not at all.

The folder is written next to its final place, synced to the disk and renamed. After a failure, no folder is
left. Several exports may write a folder for one place at the same time, and the export that ends last
replaces the others.

Each export holds a lock on its own new folder while it runs. Another export deletes only new folders without a
lock, because these folders are left over from killed exports. A lock on the parent folder makes sure that only one
export at a time creates or renames a folder there.
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
MODE: Final = 0o777  # The mode of a new folder. The umask is subtracted from this mode.


def require_place(place: Path) -> None:
    """Raise an error if the folder cannot be used, before slow work begins.

    No folder is made here, because the export may still be refused.
    """
    if place.is_symlink() or (place.exists() and not place.is_dir()):
        raise SettingsError(f"{place} exists and is not a folder; name a folder with --out")
    # A folder with a card is an earlier export, which may be replaced.
    if place.is_dir() and any(place.iterdir()) and not (place / CARD).is_file():
        raise SettingsError(
            f"{place} exists and does not contain an earlier export; name another folder with --out"
        )
    there = next(folder for folder in place.absolute().parents if os.path.lexists(folder))
    if not there.is_dir():
        raise RunError(
            f"{place.parent} cannot be made: {there} is not a folder; name another folder with --out"
        )
    if not os.access(there, os.W_OK | os.X_OK):
        raise RunError(f"this user may not write to {there}; name another folder with --out")


@contextlib.contextmanager
def new_folder(place: Path) -> Iterator[Path]:
    """Yield a new folder to fill. If nothing fails, the new folder replaces an earlier export."""
    # Parent folders that do not exist yet, the innermost first.
    made = [folder for folder in place.parents if not folder.exists()]
    # The lock on the new folder. It is released when the folder has been renamed or removed.
    lock = contextlib.ExitStack()
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
        # If another export has put its folder there, the parent folders are not empty, so they stay.
        with contextlib.suppress(OSError):
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
    """Remove the folders that killed exports have left.

    If an export was killed between its two renames, the earlier export is moved back to its place.
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
