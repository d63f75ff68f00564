"""The archive of a coordinator: an uncompressed tar file whose first member is the manifest.

The other members are the files of the manifest in the same order, and nothing else. The reader compares each header
with the manifest. So it accepts no links, no devices, no other names and no other sizes.
"""

from __future__ import annotations

import contextlib
import hashlib
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from protofleet.coordinator.moving.manifest import (
    MOST_BYTES,
    ArchivedFile,
    ArchiveManifest,
    digest_of,
    read_manifest,
)
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.storage.store import DamagedError

MANIFEST: Final = "manifest.json"
MODE: Final = 0o600
PIECE: Final = 1 << 20  # Bytes that are copied at once.
END: Final = bytes(2 * tarfile.BLOCKSIZE)


@dataclass(frozen=True, slots=True)
class Source:
    """A file that goes into an archive: its entry in the manifest, and its place on the disk."""

    entry: ArchivedFile
    path: Path


def partial_of(archive: Path) -> Path:
    """Return the path of an archive that is not complete yet."""
    return archive.with_name(f".{archive.name}.partial")


def header_of(name: str, size: int) -> bytes:
    """Return the header of a member; raise SettingsError if tar's oldest form cannot hold the name or the size."""
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, MODE
    try:
        return member.tobuf(tarfile.USTAR_FORMAT, "utf-8", "strict")
    except (ValueError, UnicodeError) as error:
        raise SettingsError(
            f"{name} cannot be put into an archive ({error}); rename the file or move it away"
        ) from None


def entry_of(path: Path, name: str) -> ArchivedFile:
    """Return the entry of a file for the manifest."""
    return ArchivedFile(name, *_read_whole(path, lambda piece: None))


def _read_whole(path: Path, take: Callable[[bytes], object]) -> tuple[int, str]:
    """Pass a file to `take`, piece by piece; return its size and its SHA-256."""
    whole, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            whole.update(piece)
            size += len(piece)
            take(piece)
    return size, whole.hexdigest()


def write_archive(
    target: Path, manifest: ArchiveManifest, sources: Iterator[Source] | list[Source], disk: Disk
) -> None:
    """Write a whole archive and sync it; the target is replaced."""
    data = manifest.encode()
    disk.remove(target)
    with target.open("xb") as out:
        target.chmod(MODE)
        out.write(header_of(MANIFEST, len(data)) + _padded(data))
        for source in sources:
            out.write(header_of(source.entry.path, source.entry.size))
            _copy(source, out)
        out.write(END)
    disk.sync(target)


def _padded(data: bytes) -> bytes:
    return data + bytes(_padding(len(data)))


def _padding(size: int) -> int:
    return -size % tarfile.BLOCKSIZE


def _copy(source: Source, out: BinaryIO) -> None:
    if _read_whole(source.path, out.write) != (source.entry.size, source.entry.sha256):
        raise SettingsError(
            f"{source.path} has changed while it was copied; end the program that writes to it, and hand over again"
        )
    out.write(bytes(_padding(source.entry.size)))


class ArchiveReader:
    """An open archive whose manifest was checked. The contents of the files are checked when they are read."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path, self._file = path, file
        data = self._content(self._member(MANIFEST, MOST_BYTES))
        self.manifest, self.digest = read_manifest(data, str(path)), digest_of(data)
        self._check_size(len(data))

    def _check_size(self, manifest: int) -> None:
        """Check that the archive has exactly as many bytes as its manifest says, before anything is written."""
        sizes = [manifest, *(file.size for file in self.manifest.files)]
        whole = sum(tarfile.BLOCKSIZE + size + _padding(size) for size in sizes) + len(END)
        if (found := self.path.stat().st_size) != whole:
            raise self._damaged(f"it has {found:,} bytes, but its manifest says {whole:,}")

    def extract(self, write: Callable[[ArchivedFile], contextlib.AbstractContextManager[BinaryIO]]) -> None:
        """Read all files; `write` opens the file that gets a content. Raise DamagedError if a content is wrong."""
        for entry in self.manifest.files:
            size = self._member(entry.path, entry.size)
            if size != entry.size:
                raise self._damaged(f"{entry.path} has {size:,} bytes, but its manifest says {entry.size:,}")
            with write(entry) as out:
                self._copy(entry, out)
        if self._file.read() != END:
            raise self._damaged("it does not end after its last file")

    def _copy(self, entry: ArchivedFile, out: BinaryIO) -> None:
        whole, left = hashlib.sha256(), entry.size
        while left:
            piece = self._read(min(PIECE, left))
            whole.update(piece)
            out.write(piece)
            left -= len(piece)
        if whole.hexdigest() != entry.sha256:
            raise self._damaged(f"the SHA-256 of {entry.path} is wrong")
        self._read(_padding(entry.size))

    def _member(self, name: str, most: int) -> int:
        """Read a header, and return the size of the member; it must be an ordinary file of this name."""
        try:
            found = tarfile.TarInfo.frombuf(self._read(tarfile.BLOCKSIZE), "utf-8", "strict")
        except (tarfile.HeaderError, ValueError):
            raise self._damaged(f"the header of {name} cannot be read") from None
        if found.name != name:
            raise self._damaged(f"it has {found.name[:99]!r} in place of {name}")
        if found.type != tarfile.REGTYPE:
            raise self._damaged(f"{name} is a link, a device or a folder, but must be a file")
        if not 0 <= found.size <= most:
            raise self._damaged(f"{name} has {found.size:,} bytes; the limit is {most:,}")
        return found.size

    def _content(self, size: int) -> bytes:
        data = self._read(size)
        self._read(_padding(size))
        return data

    def _read(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) != size:
            raise self._damaged("it ends too early")
        return data

    def _damaged(self, problem: str) -> DamagedError:
        return DamagedError(f"{self.path} cannot be unpacked: {problem}; copy it again, or hand over again")


@contextlib.contextmanager
def opened(path: Path) -> Iterator[ArchiveReader]:
    """Open an archive, and check its manifest and its size."""
    if path.name.startswith(".") and path.suffix == partial_of(path).suffix:
        raise SettingsError(f"{path} is not complete; run `protofleet hand-over` again, which completes it")
    try:
        # A pipe would let this process wait, so it is not opened.
        if not path.is_file():
            raise FileNotFoundError
        file = path.open("rb")
    except FileNotFoundError:
        raise SettingsError(
            f"there is no archive {path}; name the file that `protofleet hand-over` has made"
        ) from None
    with file:
        yield ArchiveReader(path, file)


def check_archive(path: Path) -> ArchiveReader:
    """Read a whole archive, check each hash, and return its reader, which is closed then."""
    with path.open("rb") as file:
        reader = ArchiveReader(path, file)
        with Path("/dev/null").open("wb") as nothing:
            reader.extract(lambda entry: contextlib.nullcontext(nothing))
    return reader
