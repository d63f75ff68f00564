"""Keep small unfinished updates in memory, because a file for each update would cost more.

After a crash, their blocks are requested again. Memory for an update is reserved when its first block arrives. If
unfinished updates take too much memory, the next updates are written to files, like larger updates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from protofleet.protocol.storage.partial import Blocks
from protofleet.protocol.wire.messages import Manifest

SMALL: Final = 1 << 20  # Largest size of a small update in bytes.
MOST_BYTES: Final = 32 << 20  # Bytes of memory for all unfinished updates.


class Memory:
    """The memory for the unfinished small updates of all devices."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self.most, self._taken = most, 0  # Largest number of bytes, and number of bytes in use.

    def take(self, size: int) -> bytearray | None:
        """Return a buffer of this size, or None if too little memory is left."""
        if self._taken + size > self.most:
            return None
        self._taken += size
        return bytearray(size)

    def give_back(self, content: bytearray) -> None:
        self._taken -= len(content)


class SmallBlocks:
    """The blocks of one small update."""

    def __init__(
        self, manifest: Manifest, memory: Memory, put: Callable[[bytes | bytearray], object],
        in_file: Callable[[bytearray], Blocks],
    ) -> None:  # fmt: skip
        """Set up the blocks of an update.

        `put` receives the complete update. If the memory is used up, the blocks are written to a file. Then
        `in_file` gets `have`, and returns an object that writes the blocks.
        """
        self.manifest, self._memory, self._put, self._in_file = manifest, memory, put, in_file
        # One byte for each block; it is not 0 if the block has arrived.
        self.have = bytearray(len(manifest.hashes))
        self._content: bytearray | None = None
        self._file: Blocks | None = None

    @property
    def is_in_memory(self) -> bool:
        """Return whether blocks have arrived and are in memory."""
        return self._content is not None

    def write(self, start: int, data: memoryview) -> None:
        if self._content is None and self._file is None:
            self._content = self._memory.take(self.manifest.size)
            self._file = self._in_file(self.have) if self._content is None else None
        if self._file is not None:
            self._file.write(start, data)
        elif self._content is not None:
            self._content[start : start + len(data)] = data

    def read(self, start: int, stop: int) -> bytes:
        if self._content is not None:
            return bytes(self._content[start:stop])
        assert self._file is not None, "what is read was written before"
        return self._file.read(start, stop)

    def keep(self) -> None:
        if self._file is not None:
            self._file.keep()
        elif self._content is not None:
            self._put(self._content)
            self.close(forget=True)

    def close(self, forget: bool) -> None:
        if self._file is not None:
            self._file.close(forget)
        elif self._content is not None and forget:
            self._memory.give_back(self._content)
            self._content = None
