"""Receive an object in blocks; check each block when it arrives, and the whole object at the end."""

from __future__ import annotations

import hashlib
from typing import Final, Protocol

from protofleet.protocol.storage.disk import no_room
from protofleet.protocol.wire.arrays import Body
from protofleet.protocol.wire.blocks import length_of, short_hash
from protofleet.protocol.wire.layout import merge_neighbours
from protofleet.protocol.wire.messages import Manifest
from protofleet.protocol.wire.reasons import Reason, Rejected

CHUNK: Final = 1 << 20


class Blocks(Protocol):
    """The place where received blocks are stored until all blocks have arrived."""

    def write(self, start: int, data: memoryview) -> None: ...

    def read(self, start: int, stop: int) -> bytes: ...

    def keep(self) -> None:
        """Store the object under its name; all blocks have arrived and were checked."""

    def close(self, forget: bool) -> None:
        """Close the store of the blocks; if `forget`, also delete the blocks."""


class Partial:
    """An object that is being received.

    Blocks from an earlier transfer of the same object are used again.
    """

    def __init__(self, manifest: Manifest, have: bytearray, blocks: Blocks) -> None:
        """Create an object with some received blocks; `have` has one byte for each block: 1 if it was received."""
        self.manifest, self.have, self._blocks = manifest, have, blocks
        self._missing = have.count(0)
        # Hash over the first `_hashed` blocks.
        self._whole, self._hashed = hashlib.sha256(), 0

    @property
    def complete(self) -> bool:
        return self._missing == 0

    @property
    def bytes_here(self) -> int:
        manifest, last = self.manifest, len(self.have) - 1
        here = (len(self.have) - self._missing) * manifest.block
        return here - (manifest.block - length_of(manifest, last) if self.have[last] else 0)

    def write(self, index: int, data: memoryview) -> bool:
        """Store a block, and return whether it is new."""
        if index >= len(self.have) or len(data) != length_of(self.manifest, index):
            raise Rejected(
                Reason.BAD_BLOCK, f"block {index} of {len(data)} bytes does not belong to the object"
            )
        if self.have[index]:
            return False
        # With a key, decryption has already checked the block. The hash of the whole object is always checked
        # at the end.
        if not self.manifest.key and short_hash(data) != self.manifest.hashes[index]:
            raise Rejected(Reason.BAD_BLOCK, f"block {index} does not match its hash")
        try:
            self._blocks.write(index * self.manifest.block, data)
        except OSError as error:
            raise no_room(error) from None
        self.have[index] = 1
        self._missing -= 1
        if index == self._hashed:
            self._whole.update(data)
            self._hashed += 1
        return True

    def begins_with(self, size: int) -> bool:
        """Return whether the first `size` bytes of the object are here."""
        return size <= self.manifest.size and all(self.have[: -(-size // self.manifest.block)])

    def read(self, start: int, stop: int) -> bytes:
        """Return bytes [start, stop), which must have been received."""
        return self._blocks.read(start, stop)

    def finish(self) -> None:
        """Check the whole object and store it under its name."""
        try:
            self._hash_rest()
            if self._whole.digest() != self.manifest.object:
                raise Rejected(Reason.BAD_BODY, "the blocks do not match the hash of the whole object")
            self._check_parts()
        except Rejected:
            self._blocks.close(forget=True)
            raise
        try:
            self._blocks.keep()
        except OSError as error:  # some file systems report a full disk only at this point
            raise no_room(error) from None

    def _hash_rest(self) -> None:
        """Hash the blocks that are not hashed yet, because they arrived out of order or in an earlier fetch."""
        size, at = self.manifest.size, self._hashed * self.manifest.block
        while at < size and (data := self._blocks.read(at, min(at + CHUNK, size))):
            self._whole.update(data)
            at += len(data)

    def _check_parts(self) -> None:
        """Raise Rejected if the parts in the manifest differ from the parts in the table of the received object."""
        body = Body(self._blocks.read, self.manifest.size)
        if self.manifest.parts and body.layout != merge_neighbours(self.manifest.parts):
            raise Rejected(Reason.BAD_BODY, "the parts in the manifest differ from the parts of the body")

    def abandon(self, forget: bool = True) -> None:
        self._blocks.close(forget)
