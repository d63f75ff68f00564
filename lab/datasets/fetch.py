"""Fetch a data set from its publishers. The files go into the folder from which the data set is loaded."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from pathlib import Path, PurePosixPath

from protofleet.lab.datasets.download import Downloader, disk_error, md5_of
from protofleet.lab.datasets.torchvision_lists import Published
from protofleet.runtime.command.errors import RunError


def fetch(published: Published, folder: Path, downloader: Downloader) -> None:
    """Fetch a data set. A file that is there with the right checksum is not fetched again."""
    if published.folder and is_unpacked(published, folder):
        downloader.say(f"{published.folder}/: {len(published.members)} files are there already")
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error(error, folder) from None
    for file in published.files:
        path = downloader.fetch(file, folder)
        if published.folder:
            unpack(path, published, folder)
            # All files of the archive are unpacked with the right checksums, so the archive is not needed.
            path.unlink()
            downloader.say(f"{published.folder}/: {len(published.members)} files, unpacked")


def is_unpacked(published: Published, folder: Path) -> bool:
    paths = [(folder / published.folder / name, md5) for name, md5 in published.members]
    return all(path.is_file() and md5_of(path) == md5 for path, md5 in paths)


def unpack(archive: Path, published: Published, folder: Path) -> None:
    """Unpack the listed files of an archive, and no other files. If one file fails, no file is kept.

    The files are unpacked into a new folder, which then replaces the old folder.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix=".unpacked-") as made:
        new = Path(made) / published.folder
        new.mkdir()
        try:
            extract(archive, published, new)
        except (tarfile.TarError, EOFError, OSError) as error:
            if isinstance(error, OSError) and error.filename:
                raise disk_error(error, new) from None
            raise RunError(
                f"{archive} cannot be unpacked ({error}); delete the archive and run the command again"
            ) from None
        if not is_unpacked(published, Path(made)):
            raise RunError(
                f"{archive} lacks files of {published.folder}, or their checksums are wrong; delete the archive and "
                "run the command again"
            )
        new.chmod(0o755)
        target = folder / published.folder
        if target.exists():
            shutil.rmtree(target)
        new.replace(target)


def extract(archive: Path, published: Published, new: Path) -> None:
    wanted = {name for name, _ in published.members}
    with tarfile.open(archive) as packed:
        for member in packed:
            path = PurePosixPath(member.name)
            if not member.isreg() or str(path.parent) != published.folder or path.name not in wanted:
                continue
            content = packed.extractfile(member)
            assert content is not None, "it is a regular file"
            with content, (new / path.name).open("wb") as file:
                shutil.copyfileobj(content, file)
