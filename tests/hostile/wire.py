"""Frames as docs/protocol.md has them, of any content. Nothing of the project is imported, so nothing is refused."""

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
EMPTY = struct.pack("<I", 1) + b"\x90"  # a body of no arrays

Header = dict[str, Any]


def envelope(
    header: Mapping[str, Any], fields: Any, key: Ed25519PrivateKey, receive: bytes = b"", names: Any = FIELDS
) -> bytes:
    """`fields` are packed, bytes go as they are. Sealed to `receive` where it is given."""
    packed = msgpack.packb([header[name] for name in names])
    head = ENVELOPE + struct.pack("<H", len(packed)) + packed
    payload = fields if isinstance(fields, bytes) else msgpack.packb(fields)
    if receive:
        payload = hpke.seal(payload, receive, SEALING + head)
    return head + payload + key.sign(DOMAIN + head + payload)


def header_of(frame: bytes) -> Header:
    """What a broker can read of an envelope."""
    (length,) = struct.unpack_from("<H", frame, 3)
    return dict(zip(FIELDS, msgpack.unpackb(frame[5 : 5 + length]), strict=False))


def opened(frame: bytes, secret: X25519PrivateKey) -> tuple[Header, Any]:
    """Header and fields; the signature is not looked at."""
    (length,) = struct.unpack_from("<H", frame, 3)
    header, payload = header_of(frame), frame[5 + length : -SIGNATURE]
    if header["suite"] == 1:
        payload = hpke.unseal(payload, secret, SEALING + frame[: 5 + length])
    return header, msgpack.unpackb(payload, strict_map_key=False)


def body(arrays: Mapping[str, np.ndarray]) -> bytes:
    """In the order of (kind, name), as a writer must put them."""
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
    """What offers a body in blocks of a size; every entry may be replaced."""
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
    """Index and content of a block of this object; None of another one."""
    if frame[3:19] != wire_name(offer)[:16]:
        return None
    (index,) = struct.unpack_from("<I", frame, 19)
    nonce = index.to_bytes(12, "little")
    return index, AESGCM(offer[5]).decrypt(nonce, frame[23:], frame[:23]) if len(offer) > 5 else frame[23:]
