"""Unfinished answers of a few blocks, in memory: a file for each would cost more than all that is in it.

Nothing is lost by it that counts: what a death takes is asked for again. Memory is taken when the first block comes,
and where too much of it is taken by answers that do not get on, the next ones wait in files as larger ones do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from protofleet.protocol.storage.partial import Blocks
from protofleet.protocol.wire.messages import Manifest

SMALL: Final = 1 << 20  # bytes of an answer, at most
MOST_BYTES: Final = 32 << 20  # of all that are unfinished


class Memory:
    """For the unfinished small answers of all devices."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self.most, self._taken = most, 0  # bytes

    def take(self, size: int) -> bytearray | None:
        """None: no more of it is to be had."""
        if self._taken + size > self.most:
            return None
        self._taken += size
        return bytearray(size)

    def give_back(self, content: bytearray) -> None:
        self._taken -= len(content)


class SmallBlocks:
    """The blocks of one answer."""

    def __init__(
        self, manifest: Manifest, memory: Memory, put: Callable[[bytes | bytearray], object],
        in_file: Callable[[bytearray], Blocks],
    ) -> None:  # fmt: skip
        """`put` takes the whole. `in_file` is called where the memory is used up, with `have`."""
        self.manifest, self._memory, self._put, self._in_file = manifest, memory, put, in_file
        self.have = bytearray(len(manifest.hashes))  # which of them are here
        self._content: bytearray | None = None
        self._file: Blocks | None = None

    @property
    def is_in_memory(self) -> bool:
        """Whether there are blocks, and all of them here."""
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
