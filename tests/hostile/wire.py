"""Frames as docs/protocol.md describes them, with any content.

The module imports nothing of the project, so it refuses nothing.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Mapping
from typing import Any

import msgpack
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tests.protocol import hpke

ENVELOPE, BLOCK = b"PF\x01", b"PF\x02"
DOMAIN, SEALING, NAMING = b"protofleet/1 envelope\0", b"protofleet/1 sealed\0", b"protofleet/1 object\0"
SIGNATURE = 64
FIELDS = (
    "major", "minor", "suite", "kind", "federation", "run", "epoch", "sender", "boot", "sequence", "recipient",
    "round", "phase", "base",
)  # fmt: skip
EMPTY = struct.pack("<I", 1) + b"\x90"  # A body without arrays.

Header = dict[str, Any]


def envelope(
    header: Mapping[str, Any], fields: Any, key: Ed25519PrivateKey, receive: bytes = b"", names: Any = FIELDS
) -> bytes:
    """Return a signed envelope, sealed to `receive` if that is given.

    `fields` are packed; if they are bytes, they go into the envelope as they are.
    """
    packed = msgpack.packb([header[name] for name in names])
    head = ENVELOPE + struct.pack("<H", len(packed)) + packed
    payload = fields if isinstance(fields, bytes) else msgpack.packb(fields)
    if receive:
        payload = hpke.seal(payload, receive, SEALING + head)
    return head + payload + key.sign(DOMAIN + head + payload)


def header_of(frame: bytes) -> Header:
    """Return the part of an envelope that a broker can read."""
    (length,) = struct.unpack_from("<H", frame, 3)
    return dict(zip(FIELDS, msgpack.unpackb(frame[5 : 5 + length]), strict=False))


def opened(frame: bytes, secret: X25519PrivateKey) -> tuple[Header, Any]:
    """Return the header and the fields of a frame, without a check of the signature."""
    (length,) = struct.unpack_from("<H", frame, 3)
    header, payload = header_of(frame), frame[5 + length : -SIGNATURE]
    if header["suite"] == 1:
        payload = hpke.unseal(payload, secret, SEALING + frame[: 5 + length])
    return header, msgpack.unpackb(payload, strict_map_key=False)


def body(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return a body whose arrays stand in the order of (kind, name), as the protocol demands of a writer."""
    ordered = sorted(arrays.items(), key=lambda item: (kind_of(item[0]), item[0]))
    table = msgpack.packb([[name, str(array.dtype), list(array.shape)] for name, array in ordered])
    return with_table(table, b"".join(np.ascontiguousarray(array).tobytes() for _, array in ordered))


def with_table(table: bytes, raw: bytes = b"") -> bytes:
    return struct.pack("<I", len(table)) + table + raw


def arrays_in(data: bytes) -> dict[str, np.ndarray]:
    (length,) = struct.unpack_from("<I", data)
    at, found = 4 + length, {}
    for name, dtype, shape in msgpack.unpackb(data[4:at]):
        count = int(np.prod(shape, dtype=np.int64))
        found[name] = np.frombuffer(data, dtype, count, at).reshape(shape)
        at += found[name].nbytes
    return found


def kind_of(name: str) -> str:
    kinds = ("weights", "prototypes", "anchors", "classifier", "amplifier", "features", "labels", "counts")
    first = name.split(".")[0]
    return first if first in kinds else "control"


def parts_of(data: bytes) -> list[list[Any]]:
    (length,) = struct.unpack_from("<I", data)
    parts: list[list[Any]] = [["control", 4 + length]]
    for name, array in arrays_in(data).items():
        if parts[-1][0] == kind_of(name):
            parts[-1][1] += array.nbytes
        else:
            parts.append([kind_of(name), array.nbytes])
    return parts


def manifest(data: bytes, size: int = 4096, key: bytes = b"") -> list[Any]:
    """Return the manifest that offers a body in blocks of a size; a test may replace every entry."""
    hashes = [hashlib.sha256(data[i : i + size]).digest()[:16] for i in range(0, len(data), size)]
    name, key = hashlib.sha256(data).digest(), key or os.urandom(32)
    return [name, len(data), size, b"".join(hashes), parts_of(data), key]


def wire_name(offer: list[Any]) -> bytes:
    return hashlib.sha256(NAMING + offer[5] + offer[0]).digest() if len(offer) > 5 else offer[0]


def block(offer: list[Any], index: int, data: bytes) -> bytes:
    head = BLOCK + wire_name(offer)[:16] + struct.pack("<I", index)
    if len(offer) <= 5:
        return head + data
    return head + AESGCM(offer[5]).encrypt(index.to_bytes(12, "little"), data, head)


def unblocked(offer: list[Any], frame: bytes) -> tuple[int, bytes] | None:
    """Return the index and the content of a block of this object, or None for a block of another one."""
    if frame[3:19] != wire_name(offer)[:16]:
        return None
    (index,) = struct.unpack_from("<I", frame, 19)
    nonce = index.to_bytes(12, "little")
    return index, AESGCM(offer[5]).decrypt(nonce, frame[23:], frame[:23]) if len(offer) > 5 else frame[23:]
