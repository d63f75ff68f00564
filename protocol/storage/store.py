"""Objects on disk: complete ones under their SHA-256, unfinished ones beside them with the blocks received so far.

Nothing larger than one block stays in memory. A complete object appears by rename and never changes.
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

from protofleet.protocol.storage.disk import Disk, NoRoom, no_room, write_whole
from protofleet.protocol.storage.partial import CHUNK, Blocks, Partial
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

BODY, PART, SPARE = ".body", ".part", ".spare"  # end the names of what is whole, half here, half linked
# Bytes of an object that is put together in memory: its pieces take longer one by one than to copy.
SMALL: Final = 1 << 20


class DamagedError(ValueError):
    """What an earlier process has saved cannot be used. The message names the file and the way out."""


class NewerFormatError(ValueError):
    """A later version of the software has written it."""

    def __init__(self, path: Path, found: int, known: int) -> None:
        self.found = found
        super().__init__(
            f"{path} is of format {found}, and this version knows formats up to {known}: a newer protofleet has "
            f"written it; run that one, or take {path.parent} from a backup that this version has written"
        )


class ObjectStore:
    """A folder of objects. `durable=False` spares the fsyncs where losing the folder loses nothing."""

    def __init__(
        self, folder: Path, durable: bool = True, disk: Disk | None = None, make: bool = True
    ) -> None:
        """With `make=False` the folder is made when the first object comes."""
        self.folder, self.durable = folder, durable
        self.disk = disk or Disk(durable)
        self.damaged = 0  # objects whose bytes did not match their hash, and have been removed
        # In containers all processes have one id.
        self._mine = f"new-{int.from_bytes(os.urandom(4), 'little')}"
        self._sound: set[bytes] = set()  # written by this process, or hashed by it
        self._served: tuple[bytes, BinaryIO] | None = None  # the object whose blocks are being read
        self._made: dict[bytes, Manifest] = {}  # the last one, as whoever puts is about to send
        self._may_have_parts = True  # unfinished objects: an earlier process may have left some
        self._begun: tuple[Manifest, bytearray] | None = None  # the last one of this process, and what came
        if make:
            with contextlib.suppress(OSError):  # where the disk is full now, it is made when there is room
                self.disk.make(folder)

    def put(self, arrays: Arrays, block: int = DEFAULT_BLOCK) -> Manifest:
        """Write arrays as an object, reading one array at a time where it is large."""
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
        """`put`, which writes nothing where this store or another one has the object: it costs a look at the arrays.

        In the other one's place it gets a second name here, so the other one must not be less durable.
        """
        made, pieces = encoded(arrays)
        manifest = manifest_of(pieces, made, block_size(sum(n for _, n in made), block))
        path = self._path(manifest.object)
        if self.has(manifest.object):
            if self.durable:  # a dead process may have named it, and not lived to make the name last
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
        """Whether the other one has it, and so has this one now."""
        if not other.has(name):
            return False
        self.disk.make(self.folder)
        try:
            self.disk.link(other._path(name), self._path(name))
        except FileNotFoundError:  # another thread has removed it since
            return False
        self._sound.add(name)
        return True

    def put_bytes(self, body: bytes | bytearray, name: bytes = b"") -> bytes:
        """Write a body that came whole. `name` is its hash, where that is known already; it comes back."""
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
        """Where the content is written before it has its name. Half of it would fill a full disk further."""
        path = self.folder / f"{self._mine}-{id(content)}"
        try:
            self.disk.make(self.folder)
            yield path
        except OSError:
            path.unlink(missing_ok=True)
            raise

    def has(self, name: bytes) -> bool:
        """Whether it is here and its bytes match its hash. What an earlier process left is hashed once."""
        if not os.path.isfile(f"{self.folder}/{name.hex()}{BODY}"):  # noqa: PTH113 - a Path takes longer
            self._sound.discard(name)
            return False
        if name not in self._sound:
            path = self._path(name)
            if _hash_of(path) != name:
                log.error("%s is damaged: its bytes are not those that it is named by; it is removed", path)
                self.damaged += 1
                self.disk.remove(path)
                return False
            self._sound.add(name)
        return True

    def size(self, name: bytes) -> int:
        """In bytes; 0 where it is not here."""
        return self._path(name).stat().st_size if self.has(name) else 0

    def manifest(self, name: bytes, block: int = DEFAULT_BLOCK) -> Manifest:
        """The manifest of an object that is here, made again from its bytes where a restart forgot it."""
        size = self._path(name).stat().st_size
        if (made := self._made.get(name)) and made.block == block_size(size, block):
            return made
        body = self.open(name)
        return manifest_of(self._stream(name), body.parts, block_size(size, block))

    def open(self, name: bytes) -> Body:
        path, size = self._path(name), self._size_of(name)
        return Body(lambda start, stop: _read(path, start, stop), size)

    def load(self, name: bytes) -> Body:
        """`open`, for one whose arrays are all read: a small one is read in one go, and stays in memory."""
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
        """Blocks are read one after another: the file stays open until the last one."""
        if self._served is None or self._served[0] != manifest.object:
            self._stop_serving()
            self._served = (manifest.object, self._path(manifest.object).open("rb", buffering=0))
        size = length_of(manifest, index)
        data = os.pread(self._served[1].fileno(), size, index * manifest.block)
        if len(data) < size:
            raise Rejected(Reason.BAD_BODY, f"{self._path(manifest.object).name} ends within block {index}")
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
        """Remove every complete object but these, and what dead processes left half-written."""
        kept = {name.hex() + BODY for name in wanted}
        self._stop_serving()  # a file that is open keeps its room on the disk
        for name in self._listed():
            half_written = name.startswith("new-") and not name.startswith(f"{self._mine}-")
            if half_written or name.endswith(SPARE) or (name.endswith(BODY) and name not in kept):
                self.disk.remove(self.folder / name)
        self._sound &= wanted

    def sweep(self) -> None:
        """Remove what dead processes left half-written; what this one has begun may still be arriving."""
        mine = self._begun[0].object.hex() + PART if self._begun else ""
        for name in self._listed():
            if name != mine and (name.startswith("new-") or name.endswith(PART)):
                self.disk.remove(self.folder / name)

    def forget_unfinished(self) -> None:
        """The task that they were answers to is closed."""
        self._remove_parts("")

    def drop(self, name: bytes) -> None:
        self._stop_serving()
        self.disk.remove(self._path(name))

    def begin(self, manifest: Manifest) -> Partial:
        """Begin to receive an object; any other unfinished one is removed, or broken offers would fill the disk."""
        try:
            self.disk.make(self.folder)
        except OSError as error:
            raise no_room(error) from None
        self._remove_parts(manifest.object.hex() + PART)
        begun_before = self._may_have_parts and self.part_of(manifest).exists()
        if not begun_before and (room := self.disk.free_bytes(self.folder)) < manifest.size:
            raise NoRoom(f"the disk has room for {room} bytes, {manifest.size} are offered")
        content = replace(manifest, key=b"")  # whatever key it is sealed under
        if len(manifest.hashes) == 1 and not begun_before:
            return Partial(manifest, bytearray(1), _OneBlock(self, manifest))
        received = Partial(manifest, self._here(content), self._part_file(manifest))
        self._begun = (content, received.have)
        return received

    def _remove_parts(self, but: str) -> None:
        """A folder is looked through where there may be any."""
        if not self._may_have_parts:
            return
        listed = [name for name in self._listed() if name.endswith(PART)]
        for name in listed:
            if name != but:
                self.disk.remove(self.folder / name)
        self._may_have_parts = but in listed

    def _listed(self) -> list[str]:
        """Names of files."""
        try:
            return os.listdir(self.folder)  # noqa: PTH208 - a glob takes ten times as long
        except FileNotFoundError:
            return []

    def _part_file(self, manifest: Manifest) -> Blocks:
        self._may_have_parts = True
        return _PartFile(self, manifest)

    def _here(self, manifest: Manifest) -> bytearray:
        """Which blocks are in the file. What an earlier process left has to be checked.

        That costs a hash over the whole: a sender that offers it again and again must not cause it each time.
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
    """The blocks of an unfinished object in a file beside the complete ones."""

    def __init__(self, store: ObjectStore, manifest: Manifest) -> None:
        self._store, self._path, self._object = store, store.part_of(manifest), manifest.object
        try:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise no_room(error) from None
        self._file = os.fdopen(handle, "r+b", buffering=0)  # one that is forgotten closes itself
        try:
            # Sparse: a sender that offers and sends nothing takes no space.
            os.ftruncate(self._file.fileno(), manifest.size)
        except OSError as error:
            self.close(forget=True)
            raise no_room(error) from None

    def write(self, start: int, data: memoryview) -> None:
        os.pwrite(self._file.fileno(), data, start)

    def read(self, start: int, stop: int) -> bytes:
        return os.pread(self._file.fileno(), stop - start, start)

    def keep(self) -> None:
        self._file.close()
        self._store._finish(self._path, self._object)

    def close(self, forget: bool) -> None:
        self._file.close()
        if forget:
            self._path.unlink(missing_ok=True)


class _OneBlock:
    """An object of one block is never half here: it waits for no other block, and no file waits for it."""

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
            self._path.unlink(missing_ok=True)  # half of it would fill a full disk further
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
    return data  # type: ignore[return-value]  # a bytearray serves; copying a model to please a type would not
