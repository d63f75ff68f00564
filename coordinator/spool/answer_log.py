"""The log of small updates, which are stored one after another in a few files.

All updates of one turn of the loop become durable with one fsync. The place of an update in the log is
written to the index in the transaction that accepts the update. Bytes without such a place belong to no
update. They are deleted together with their file.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from protofleet.coordinator.spool.small_answers import SMALL, Memory, SmallBlocks
from protofleet.protocol.storage.disk import Disk, no_room, write_at
from protofleet.protocol.storage.partial import Blocks, Partial
from protofleet.protocol.storage.store import DamagedError, ObjectStore
from protofleet.protocol.wire.arrays import Body
from protofleet.protocol.wire.messages import Manifest

log = logging.getLogger("protofleet.coordinator")

SUFFIX: Final = ".log"


class AnswerPlace(NamedTuple):
    """The place of an update in the log: the file, the first byte, and the size."""

    file: int
    start: int
    size: int


class AnswerLog:
    """The small updates of all devices, in log files.

    A process never appends to a file of an earlier process, so incomplete bytes at the end of a file do no
    harm.
    """

    def __init__(
        self, folder: Path, disk: Disk, places: Iterable[tuple[str, bytes, AnswerPlace]] = (),
        memory: Memory | None = None,
    ) -> None:  # fmt: skip
        """Open the log; `memory` is used for updates that are still incomplete."""
        self.folder, self.disk, self.memory = folder, disk, memory or Memory()
        self.damaged = 0  # Number of updates whose bytes do not match their name.
        self._places = {(device, name): place for device, name, place in places}
        # Updates that this process has written, or whose bytes it has checked.
        self._sound: set[tuple[str, bytes]] = set()
        numbers = [place.file for place in self._places.values()]
        self._file = 1 + max([*numbers, *(int(path.stem) for path in self._files())], default=0)
        # Number of bytes that were written to the current file, and number of these bytes that are durable.
        self._end = self._synced = 0
        # File that is open for writing. Python closes it when the last reference to it is gone.
        self._handle: BinaryIO | None = None
        # The file that was read last. It stays open, because the next read is usually from the same file.
        self._reader: tuple[int, BinaryIO] | None = None
        self._reading = threading.Lock()

    def append(self, device: str, body: bytes | bytearray, name: bytes = b"") -> bytes:
        """Append an update and return its name, which is its hash; pass `name` if the hash is known already.

        Call `sync` before a message that depends on the update is sent.
        """
        name = name or hashlib.sha256(body).digest()
        if self.has(device, name):
            return name
        if self._handle is None:
            self._handle = self._new_file()
        write_at(self._handle.fileno(), body, self._end)
        self._places[device, name] = AnswerPlace(self._file, self._end, len(body))
        self._sound.add((device, name))
        self._end += len(body)
        return name

    def sync(self) -> None:
        """Make all appended updates durable, so that they survive a power failure."""
        if self._end == self._synced:
            return
        self.disk.sync(self._path(self._file))
        if not self._synced:
            self.disk.sync(self.folder)
        self._synced = self._end

    def begin_file(self) -> None:
        """Begin a new file for the later updates, so that the older files can be deleted."""
        if self._handle is not None:
            self._handle.close()
            self._handle, self._file, self._end, self._synced = None, self._file + 1, 0, 0

    def close(self) -> None:
        self.begin_file()
        self._stop_reading()

    def _stop_reading(self) -> None:
        with self._reading:
            if self._reader is not None:
                self._reader[1].close()
            self._reader = None

    def place(self, device: str, name: bytes) -> AnswerPlace | None:
        return self._places.get((device, name))

    def has(self, device: str, name: bytes) -> bool:
        """Return whether the update is in the log and its bytes match its name.

        An update that an earlier process has written is hashed at its first use.
        """
        key = (device, name)
        if (place := self._places.get(key)) is None:
            return False
        if key in self._sound:
            return True
        try:
            whole = hashlib.sha256(self._bytes(place, 0, place.size)).digest() == name
        except FileNotFoundError:
            whole = False
        if whole:
            self._sound.add(key)
            return True
        log.error("an update of %s is damaged or missing: the hash of bytes %d to %d of %s is not the update's name",
                  device, place.start, place.start + place.size, self._path(place.file))  # fmt: skip
        self.damaged += 1
        del self._places[key]
        return False

    def read(self, device: str, name: bytes, start: int, stop: int) -> bytes:
        return self._bytes(self._places[device, name], start, stop)

    def forget(self, device: str, name: bytes) -> None:
        """Forget an update.

        If its bytes are the last bytes of the file and not durable yet, they are deleted at once. This is the
        usual case if the update was refused. Otherwise its bytes are deleted together with the whole file.
        """
        place = self._places.pop((device, name), None)
        self._sound.discard((device, name))
        is_last = place is not None and place[:2] == (self._file, self._end - place.size)
        if place is not None and is_last and place.start >= self._synced and self._handle is not None:
            os.ftruncate(self._handle.fileno(), place.start)
            self._end = place.start

    def names(self, device: str) -> list[bytes]:
        return [name for owner, name in self._places if owner == device]

    def keep(self, wanted: Collection[tuple[str, bytes]]) -> None:
        """Forget all updates except `wanted`, and delete each file that holds none of the wanted updates."""
        self._places = {key: place for key, place in self._places.items() if key in wanted}
        self._sound &= self._places.keys()
        used = {self._file, *(place.file for place in self._places.values())}
        self._stop_reading()  # The disk does not free the space of a deleted file that is still open.
        for path in self._files():
            if int(path.stem) not in used:
                self.disk.remove(path)

    @property
    def size(self) -> int:
        """Return the total size of all files in bytes."""
        return sum(path.stat().st_size for path in self._files())

    def _new_file(self) -> BinaryIO:
        self.disk.make(self.folder, self.folder.parent)
        while True:
            try:
                handle = os.open(self._path(self._file), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
                return os.fdopen(handle, "r+b", buffering=0)
            # If the file exists, another coordinator has started in this folder. The next use of the index
            # will then raise FencedError.
            except FileExistsError:
                self._file += 1

    def _files(self) -> list[Path]:
        return [path for path in self.folder.glob(f"*{SUFFIX}") if path.stem.isdecimal()]

    def _path(self, file: int) -> Path:
        return self.folder / f"{file:08}{SUFFIX}"

    def _bytes(self, place: AnswerPlace, start: int, stop: int) -> bytes:
        data = bytearray(stop - start)  # A bytearray is writable, so torch can use its bytes without a copy.
        with self._reading:  # The event loop and the thread of the server half read at the same time.
            if self._reader is None or self._reader[0] != place.file:
                self._reader = (place.file, self._path(place.file).open("rb", buffering=0))
            count = os.preadv(self._reader[1].fileno(), [data], place.start + start)
        return data[:count] if count < len(data) else data  # type: ignore[return-value]  # it serves as bytes


class DeviceAnswers(ObjectStore):
    """The store of the updates of one device. Small updates are in the log, and large updates are files."""

    def __init__(self, device: str, folder: Path, answers: AnswerLog, disk: Disk) -> None:
        super().__init__(folder, disk=disk, make=False, within=answers.folder.parent)
        self._device, self._answers = device, answers
        self._small: SmallBlocks | None = None  # Blocks of the small update that is being received.

    def begin(self, manifest: Manifest) -> Partial:
        """Begin or continue to receive an update. If the update has a file already, continue in this file."""
        if manifest.size > SMALL or self.part_of(manifest).exists():
            self._forget_small()
            return super().begin(manifest)
        content = replace(manifest, key=b"")
        if self._small is None or not self._small.is_in_memory or self._small.manifest != content:
            self.forget_unfinished()
            put = partial(self.put_bytes, name=manifest.object)
            in_file = partial(self._blocks_in_file, content)
            self._small = SmallBlocks(content, self._answers.memory, put, in_file)
        return Partial(manifest, self._small.have, self._small)

    def _blocks_in_file(self, manifest: Manifest, have: bytearray) -> Blocks:
        self._begun = (manifest, have)
        self.disk.make(self.folder, self.within)
        return self._part_file(manifest)

    def forget_unfinished(self) -> None:
        self._forget_small()
        if self.folder.is_dir():
            super().forget_unfinished()

    def _forget_small(self) -> None:
        if self._small is not None and self._small.is_in_memory:
            self._small.close(forget=True)
        self._small = None

    def put_bytes(self, body: bytes | bytearray, name: bytes = b"") -> bytes:
        try:
            return self._answers.append(self._device, body, name)
        except OSError as error:
            raise no_room(error) from None

    def has(self, name: bytes) -> bool:
        return self._answers.has(self._device, name) or super().has(name)

    def size(self, name: bytes) -> int:
        place = self._answers.place(self._device, name)
        return place.size if place else super().size(name)

    def open(self, name: bytes) -> Body:
        if not self._answers.has(self._device, name):
            return super().open(name)
        return Body(lambda start, stop: self.read(name, start, stop), self.size(name))

    def read(self, name: bytes, start: int, stop: int) -> bytes:
        if not self._answers.place(self._device, name):
            return super().read(name, start, stop)
        found = self._answers.read(self._device, name, start, stop)
        if len(found) < stop - start:
            raise DamagedError(f"an answer of {self._device} ends before byte {stop}")
        return found

    def names(self) -> list[bytes]:
        return [*self._answers.names(self._device), *super().names()]

    def drop(self, name: bytes) -> None:
        self._answers.forget(self._device, name)
        super().drop(name)
