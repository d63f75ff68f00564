"""Store objects on disk.

A complete object is stored under its SHA-256. An unfinished object is stored in the same folder, with the
blocks that have arrived. At most one block is kept in memory while an object is received. A complete object
gets its name by a rename, and never changes.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Final

from protofleet.protocol.storage.disk import Disk, NoRoom, no_room, write_at, write_whole
from protofleet.protocol.storage.partial import CHUNK, Blocks, Partial
from protofleet.protocol.user_error import MISUSED, UserError
from protofleet.protocol.wire.arrays import Body, encode, encoded
from protofleet.protocol.wire.blocks import (
    DEFAULT_BLOCK,
    block_size,
    chunked,
    length_of,
    manifest_of,
    short_hash,
)
from protofleet.protocol.wire.messages import Arrays, Manifest
from protofleet.protocol.wire.reasons import Reason, Rejected

log = logging.getLogger("protofleet")

# Suffixes of the file names of complete objects, of partly received objects, and of links that are being
# made.
BODY, PART, SPARE = ".body", ".part", ".spare"
# Size in bytes. An object up to this size is joined in memory and written in one piece, which is faster.
SMALL: Final = 1 << 20


class DamagedError(UserError, ValueError):
    """The error for a file that an earlier process has written and that cannot be used.

    The message names the file and gives advice.
    """


class NewerFormatError(UserError, ValueError):
    """The error for a file that a later version of the software has written."""

    exit_code = MISUSED

    def __init__(self, path: Path, found: int, known: int) -> None:
        self.found = found
        super().__init__(
            f"{path} is of format {found}, and this version knows formats up to {known}: a newer protofleet has "
            f"written it; run that one, or take {path.parent} from a backup that this version has written"
        )


class ObjectStore:
    """A folder of objects.

    With `durable=False` no fsync is made. So `durable=False` is for a folder whose loss does no harm.
    """

    def __init__(
        self, folder: Path, durable: bool = True, disk: Disk | None = None, make: bool = True,
        within: Path | None = None,
    ) -> None:  # fmt: skip
        """Open a folder of objects; with `make=False` the folder is made together with the first object.

        The folder is made only inside the folder `within`. So an owner whose folder was moved gets an error, and
        does not begin a new folder in its place.
        """
        self.folder, self.durable, self.within = folder, durable, within
        self.disk = disk or Disk(durable)
        self.damaged = 0  # number of objects that were removed because they did not match their hash
        # The number is random, because two processes in different containers may have the same process id.
        self._mine = f"new-{int.from_bytes(os.urandom(4), 'little')}"
        self._sound: set[bytes] = set()  # objects that this process has written or hashed
        self._served: tuple[bytes, BinaryIO] | None = None  # the object whose blocks are being read
        # The manifest of the object that was written last, because it is often needed soon.
        self._made: dict[bytes, Manifest] = {}
        # True if the folder may contain unfinished objects, for example of an earlier process.
        self._may_have_parts = True
        # The last object that this process began to receive, and which of its blocks have arrived.
        self._begun: tuple[Manifest, bytearray] | None = None
        if make:
            # If the disk is full now, the folder is made later, with the first object.
            with contextlib.suppress(OSError):
                self.disk.make(folder, within)

    def put(self, arrays: Arrays, block: int = DEFAULT_BLOCK) -> Manifest:
        """Write arrays as an object, and return its manifest; for a large object, read one array at a time."""
        made, pieces = encoded(arrays)
        size = sum(n for _, n in made)
        with self._new_file(arrays) as target:
            if size <= SMALL:
                whole = b"".join(pieces)
                write_whole(target, whole)
                manifest = manifest_of(iter((whole,)), made, block_size(size, block))
            else:
                with target.open("wb") as file:
                    manifest = manifest_of(_tee(pieces, file.write), made, block_size(size, block))
            self._finish(target, manifest.object)
        self._made = {manifest.object: manifest}
        return manifest

    def put_once(
        self, arrays: Arrays, block: int = DEFAULT_BLOCK, same_disk: ObjectStore | None = None
    ) -> Manifest:
        """Write arrays as an object, if neither this store nor `same_disk` has this object.

        The name of the object is a hash of the arrays. So the arrays are read once, before the stores are
        searched for this name. If `same_disk` has the object, a hard link to its file is made in this store. So
        `same_disk` must be at least as durable as this store.
        """
        made, pieces = encoded(arrays)
        manifest = manifest_of(pieces, made, block_size(sum(n for _, n in made), block))
        path = self._path(manifest.object)
        if self.has(manifest.object):
            if self.durable:  # an earlier process may have ended before the file's name was durable
                self.disk.sync(path)
                self.disk.sync(self.folder)
        elif same_disk is None or not self._link(manifest.object, same_disk):
            with self._new_file(arrays) as target:
                with target.open("wb") as file:
                    file.writelines(encode(arrays))
                self._finish(target, manifest.object)
        self._made = {manifest.object: manifest}
        return manifest

    def _link(self, name: bytes, other: ObjectStore) -> bool:
        """Link the object from the store `other`; return False if that store does not have the object."""
        if not other.has(name):
            return False
        self.disk.make(self.folder, self.within)
        try:
            self.disk.link(other._path(name), self._path(name))
        except FileNotFoundError:  # another thread has removed the file in the meantime
            return False
        self._sound.add(name)
        return True

    def link(self, name: bytes, folder: Path) -> bool:
        """Link an object from another folder of objects; return False if it is missing or damaged there."""
        self.disk.make(self.folder, self.within)
        if not self.has(name):
            try:
                self.disk.link(folder / f"{name.hex()}{BODY}", self._path(name))
            except FileNotFoundError:
                return False
        if self.durable:
            self.disk.sync(self.folder)
        return self.has(name)

    def put_bytes(self, body: bytes | bytearray, name: bytes = b"") -> bytes:
        """Write a complete body as an object, and return the object's name.

        `name` is the hash of the body, if the caller knows the hash already.
        """
        name = name or hashlib.sha256(body).digest()
        try:
            with self._new_file(body) as target:
                write_whole(target, body)
                self._finish(target, name)
        except OSError as error:
            raise no_room(error) from None
        return name

    @contextlib.contextmanager
    def _new_file(self, content: object) -> Iterator[Path]:
        """Yield the path of a new file, which the caller writes and then renames.

        If the write fails, the file is removed, so that it takes no space on a full disk.
        """
        path = self.folder / f"{self._mine}-{id(content)}"
        try:
            self.disk.make(self.folder, self.within)
            yield path
        except OSError:
            path.unlink(missing_ok=True)
            raise

    def has(self, name: bytes) -> bool:
        """Return whether the object is here and its bytes match its hash.

        An object that an earlier process has stored is hashed at the first call.
        """
        if not os.path.isfile(f"{self.folder}/{name.hex()}{BODY}"):  # noqa: PTH113 - a Path would take longer
            self._sound.discard(name)
            return False
        if name not in self._sound:
            path = self._path(name)
            if _hash_of(path) != name:
                log.error(
                    "%s is damaged: its bytes do not match the hash in its name; the file is removed", path
                )
                self.damaged += 1
                self.disk.remove(path)
                return False
            self._sound.add(name)
        return True

    def size(self, name: bytes) -> int:
        """Return the size of an object in bytes, or 0 if the store does not have it."""
        return self._path(name).stat().st_size if self.has(name) else 0

    def manifest(self, name: bytes, block: int = DEFAULT_BLOCK) -> Manifest:
        """Return the manifest of an object of this store.

        If the manifest is not in memory, for example after a restart, it is made from the object's bytes.
        """
        size = self._path(name).stat().st_size
        if (made := self._made.get(name)) and made.block == block_size(size, block):
            return made
        body = self.open(name)
        return manifest_of(self._stream(name), body.parts, block_size(size, block))

    def open(self, name: bytes) -> Body:
        path, size = self._path(name), self._size_of(name)
        return Body(lambda start, stop: _read(path, start, stop), size)

    def load(self, name: bytes) -> Body:
        """Open an object whose arrays will all be read.

        A small object is read completely and stays in memory.
        """
        if (size := self._size_of(name)) > SMALL:
            return self.open(name)
        data = self.read(name, 0, size)
        return Body(lambda start, stop: data[start:stop], size)

    def _size_of(self, name: bytes) -> int:
        if not self.has(name):
            raise DamagedError(f"{self._path(name)} is gone or damaged")
        return self._path(name).stat().st_size

    def read(self, name: bytes, start: int, stop: int) -> bytes:
        return _read(self._path(name), start, stop)

    def read_block(self, manifest: Manifest, index: int) -> bytes:
        """Read one block of an object.

        Blocks are usually read one after another, so the file stays open until the last block is read.
        """
        if self._served is None or self._served[0] != manifest.object:
            self._stop_serving()
            self._served = (manifest.object, self._path(manifest.object).open("rb", buffering=0))
        size = length_of(manifest, index)
        data = os.pread(self._served[1].fileno(), size, index * manifest.block)
        if len(data) < size:
            raise Rejected(
                Reason.BAD_BODY,
                f"{self._path(manifest.object).name} is too short: it ends within block {index}",
            )
        if index == len(manifest.hashes) - 1:
            self._stop_serving()
        return data

    def _stop_serving(self) -> None:
        if self._served:
            self._served[1].close()
        self._served = None

    def names(self) -> list[bytes]:
        return [bytes.fromhex(name.removesuffix(BODY)) for name in self._listed() if name.endswith(BODY)]

    def keep(self, wanted: set[bytes]) -> None:
        """Remove complete objects that are not in `wanted`; also remove half-written files of ended processes."""
        kept = {name.hex() + BODY for name in wanted}
        self._stop_serving()  # a removed file still takes space on the disk until it is closed
        for name in self._listed():
            half_written = name.startswith("new-") and not name.startswith(f"{self._mine}-")
            if half_written or name.endswith(SPARE) or (name.endswith(BODY) and name not in kept):
                self.disk.remove(self.folder / name)
        self._sound &= wanted

    def sweep(self) -> None:
        """Remove half-written files of ended processes, and unfinished objects.

        The object that this process began to receive is not removed, because its blocks may still arrive.
        """
        mine = self._begun[0].object.hex() + PART if self._begun else ""
        for name in self._listed():
            if name != mine and (name.startswith("new-") or name.endswith(PART)):
                self.disk.remove(self.folder / name)

    def forget_unfinished(self) -> None:
        """Remove unfinished objects, because the task that they belong to is closed."""
        self._remove_parts("")

    def drop(self, name: bytes) -> None:
        self._stop_serving()
        self.disk.remove(self._path(name))

    def begin(self, manifest: Manifest) -> Partial:
        """Begin to receive an object, and remove any other unfinished object.

        Unfinished objects that are never completed would fill the disk.
        """
        try:
            self.disk.make(self.folder, self.within)
        except OSError as error:
            raise no_room(error) from None
        self._remove_parts(manifest.object.hex() + PART)
        begun_before = self._may_have_parts and self.part_of(manifest).exists()
        if not begun_before and (room := self.disk.free_bytes(self.folder)) < manifest.size:
            raise NoRoom(
                f"the disk has room for {room} bytes, but the offered object has {manifest.size} bytes"
            )
        content = replace(manifest, key=b"")  # the stored content does not depend on the key
        if len(manifest.hashes) == 1 and not begun_before:
            return Partial(manifest, bytearray(1), _OneBlock(self, manifest))
        received = Partial(manifest, self._here(content), self._part_file(manifest))
        self._begun = (content, received.have)
        return received

    def _remove_parts(self, but: str) -> None:
        """Remove all unfinished objects except `but`; list the folder only if it may contain unfinished objects."""
        if not self._may_have_parts:
            return
        listed = [name for name in self._listed() if name.endswith(PART)]
        for name in listed:
            if name != but:
                self.disk.remove(self.folder / name)
        self._may_have_parts = but in listed

    def _listed(self) -> list[str]:
        """Return the names of the files in the folder."""
        try:
            return os.listdir(self.folder)  # noqa: PTH208 - a glob takes ten times as long
        except FileNotFoundError:
            return []

    def _part_file(self, manifest: Manifest) -> Blocks:
        self._may_have_parts = True
        return _PartFile(self, manifest)

    def _here(self, manifest: Manifest) -> bytearray:
        """Return which blocks are in the file, as one byte (0 or 1) for each block.

        Blocks that an earlier process received must be checked, and the check hashes the whole file. So this process
        checks the file only once. If a sender offers the object again, the known result is used.
        """
        path = self.part_of(manifest)
        if path.exists() and path.stat().st_size == manifest.size:
            if self._begun is None:
                return _whole_blocks(path, manifest)
            if self._begun[0] == manifest:
                return self._begun[1]
        return bytearray(len(manifest.hashes))

    def _stream(self, name: bytes) -> Iterator[bytes]:
        with self._path(name).open("rb") as file:
            while data := file.read(CHUNK):
                yield data

    def _finish(self, target: Path, name: bytes) -> None:
        self.disk.place(target, self._path(name), self.durable)
        self._sound.add(name)

    def part_of(self, manifest: Manifest) -> Path:
        return self.folder / f"{manifest.object.hex()}{PART}"

    def _path(self, name: bytes) -> Path:
        return self.folder / f"{name.hex()}{BODY}"


class _PartFile:
    """The blocks of an unfinished object, in a file in the folder of the complete objects."""

    def __init__(self, store: ObjectStore, manifest: Manifest) -> None:
        self._store, self._path, self._object = store, store.part_of(manifest), manifest.object
        try:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise no_room(error) from None
        # The file object closes the handle when this object is not used any more.
        self._file = os.fdopen(handle, "r+b", buffering=0)
        try:
            # The file is sparse, so an offer without any blocks takes no space on the disk.
            os.ftruncate(self._file.fileno(), manifest.size)
        except OSError as error:
            self.close(forget=True)
            raise no_room(error) from None

    def write(self, start: int, data: memoryview) -> None:
        write_at(self._file.fileno(), data, start)

    def read(self, start: int, stop: int) -> bytes:
        return os.pread(self._file.fileno(), stop - start, start)

    def keep(self) -> None:
        """Give the file its name.

        Another coordinator that uses this folder may have renamed or removed the file. This process has the file
        open, so the content can still be read.
        """
        with self._file:
            try:
                self._store._finish(self._path, self._object)
            except FileNotFoundError:
                size = os.fstat(self._file.fileno()).st_size
                self._store.put_bytes(self.read(0, size), self._object)

    def close(self, forget: bool) -> None:
        self._file.close()
        if forget:
            self._path.unlink(missing_ok=True)


class _OneBlock:
    """The content of an object that has only one block.

    The block is kept in memory. The object's file is written only when the object is complete.
    """

    def __init__(self, store: ObjectStore, manifest: Manifest) -> None:
        self._store, self._path, self._object = store, store.part_of(manifest), manifest.object
        self._content = b""

    def write(self, start: int, data: memoryview) -> None:
        self._content = bytes(data)

    def read(self, start: int, stop: int) -> bytes:
        return self._content[start:stop]

    def keep(self) -> None:
        try:
            write_whole(self._path, self._content)
            self._store._finish(self._path, self._object)
        except OSError:
            self._path.unlink(missing_ok=True)  # an incomplete file would only take space on the full disk
            raise

    def close(self, forget: bool) -> None:
        self._content = b""


def _whole_blocks(path: Path, manifest: Manifest) -> bytearray:
    have = bytearray(len(manifest.hashes))
    with path.open("rb") as file:
        for index, data in enumerate(chunked(iter(lambda: file.read(CHUNK), b""), manifest.block)):
            have[index] = short_hash(data) == manifest.hashes[index]
    return have


def _hash_of(path: Path) -> bytes:
    whole = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(CHUNK):
            whole.update(data)
    return whole.digest()


def _tee(
    pieces: Iterator[bytes | memoryview], write: Callable[[bytes | memoryview], object]
) -> Iterator[bytes | memoryview]:
    for piece in pieces:
        write(piece)
        yield piece


def _read(path: Path, start: int, stop: int) -> bytes:
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        data = bytearray(stop - start)
        view, filled = memoryview(data), 0
        while filled < len(data) and (count := file.readinto(view[filled:])):
            filled += count
    if filled < len(data):
        raise Rejected(Reason.BAD_BODY, f"{path.name} ends before byte {stop}")
    return data  # type: ignore[return-value]  # a bytearray is enough, and a copy of a model would cost too much
