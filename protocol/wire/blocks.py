"""Split objects into blocks, and convert blocks to frames and back.

    frame := "PF" | 0x02 | first 16 bytes of the object's name on the wire | u32 index | bytes of the block

A block has no signature: its hash is in the manifest, and the manifest is signed. If the manifest has a key,
the bytes are sealed with AES-256-GCM; the nonce is the index, and the associated data is the head of the
frame. A block of 64 KiB is below the default packet limit of every broker. With Mosquitto, no
measured size was much faster than this size. Very large objects have larger blocks, so that a manifest lists at
most MAX_BLOCKS blocks.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from protofleet.protocol.wire.codec import MAX_BLOCKS, SHORT_HASH
from protofleet.protocol.wire.messages import Manifest
from protofleet.protocol.wire.reasons import Reason, Rejected

BLOCK: Final = b"PF\x02"
OVERHEAD: Final = len(BLOCK) + SHORT_HASH + 4
KEY: Final = 32
DEFAULT_BLOCK: Final = 64 * 1024


def block_size(size: int, default: int = DEFAULT_BLOCK) -> int:
    """Return the block size of an object. The default is doubled until the manifest is short enough."""
    while size > default * MAX_BLOCKS:
        default *= 2
    return default


def short_hash(data: bytes | memoryview) -> bytes:
    return hashlib.sha256(data).digest()[:SHORT_HASH]


def manifest_of(
    pieces: Iterable[bytes | memoryview], parts: tuple[tuple[str, int], ...], block: int
) -> Manifest:
    """Hash an object that is given in pieces of any size, and return its manifest."""
    whole, size, hashes = hashlib.sha256(), 0, list[bytes]()
    for data in chunked(pieces, block):
        if hashes or len(data) == block:
            hashes.append(short_hash(data))
        whole.update(data)
        size += len(data)
    if not hashes and size:  # one block: the hash of the object is the hash of the block
        hashes.append(whole.digest()[:SHORT_HASH])
    return Manifest(whole.digest(), size, block, tuple(hashes), parts)


def chunked(pieces: Iterable[bytes | memoryview], block: int) -> Iterator[bytes | memoryview]:
    """Divide the bytes of all pieces into blocks of exactly `block` bytes; the last block may be shorter.

    Whole blocks are not copied.
    """
    rest = bytearray()
    for piece in pieces:
        view = memoryview(piece)
        if rest:
            taken = min(block - len(rest), len(view))
            rest += view[:taken]
            view = view[taken:]
            if len(rest) < block:
                continue
            yield bytes(rest)
            rest.clear()
        for start in range(0, len(view) - block + 1, block):
            yield view[start : start + block]
        rest += view[len(view) - len(view) % block :]
    if rest:
        yield bytes(rest)


def pack(manifest: Manifest, index: int, data: bytes) -> bytes:
    head = _head(manifest, index)
    if manifest.key:
        data = AESGCM(manifest.key).encrypt(_nonce(index), data, head)
    return head + data


def decrypted(manifest: Manifest, index: int, data: memoryview) -> memoryview:
    """Return the plain bytes of a block; raise Rejected if the block is not sealed with the manifest's key."""
    if not manifest.key:
        return data
    try:
        return memoryview(AESGCM(manifest.key).decrypt(_nonce(index), data, _head(manifest, index)))
    except InvalidTag:
        raise Rejected(Reason.BAD_BLOCK, f"block {index} is not sealed with the object's key") from None


def _head(manifest: Manifest, index: int) -> bytes:
    return BLOCK + manifest.wire_name[:SHORT_HASH] + struct.pack("<I", index)


def _nonce(index: int) -> bytes:
    return index.to_bytes(12, "little")


def unpack(frame: bytes) -> tuple[bytes, int, memoryview]:
    """Return (start of the name, index, data) of a block frame."""
    if len(frame) <= OVERHEAD or not is_block(frame):
        raise Rejected(Reason.MALFORMED, f"{len(frame)} bytes are not a block")
    (index,) = struct.unpack_from("<I", frame, len(BLOCK) + SHORT_HASH)
    return frame[len(BLOCK) : len(BLOCK) + SHORT_HASH], index, memoryview(frame)[OVERHEAD:]


def is_block(frame: bytes) -> bool:
    return frame[:3] == BLOCK


def length_of(manifest: Manifest, index: int) -> int:
    """Return the number of bytes in block `index`."""
    return min(manifest.block, manifest.size - index * manifest.block)
