"""The time to seal an update of 45 MB, and to verify and open it, divided by the time of plain cryptography.

Plain cryptography is one SHA-256 and one AES-GCM over the same bytes.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from statistics import median

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from protofleet.protocol.security.envelope import MAJOR, MINOR, SEALED, Header, seal, unseal
from protofleet.protocol.security.keys import Keys
from protofleet.protocol.wire import blocks, codec
from protofleet.protocol.wire.messages import Manifest, Update

SIZE = 45_000_000
ROUNDS = 15
ANSWER = Update("a", 1, "train", 10)


def measure(size: int = SIZE, rounds: int = ROUNDS) -> dict[str, object]:
    """Measure sealing, opening and plain cryptography in turn, so that other work affects all of them."""
    data, keys = os.urandom(size), {name: Keys.new() for name in ("a", "coordinator")}
    bare = blocks.manifest_of([data], (("weights", size),), blocks.DEFAULT_BLOCK)
    frames = list(sealed(data, bare, keys))
    times: dict[str, list[float]] = {"plain": [], "sealing": [], "opening": []}
    for _ in range(rounds):
        times["plain"].append(seconds(lambda: plain(data)))
        times["sealing"].append(seconds(lambda: deque(sealed(data, bare, keys), 0)))
        times["opening"].append(seconds(lambda: opened(frames, keys)))
    ratios = [(s + o) / p for p, s, o in zip(times["plain"], times["sealing"], times["opening"], strict=True)]
    return {
        **{f"{name}_ms": round(1000 * median(found), 1) for name, found in times.items()},
        "sealing_and_opening_over_plain": round(median(ratios), 2),
        "least": round(min(ratios), 2),
        "bytes_over_payload": sum(len(f) for f in frames) - size,
        "bytes_of_an_envelope_over_its_payload": overhead(keys),
    }


def plain(data: bytes) -> None:
    hashlib.sha256(data).digest()
    AESGCM(bytes(32)).encrypt(bytes(12), data, b"")


def sealed(data: bytes, bare: Manifest, keys: dict[str, Keys]) -> Iterator[bytes]:
    """Yield the offer and all blocks, in the order in which the connection to the broker gets them."""
    manifest = Manifest(bare.object, bare.size, bare.block, bare.hashes, bare.parts, os.urandom(blocks.KEY))
    yield said(codec.encode(ANSWER, manifest), keys, SEALED)
    step = manifest.block
    for i in range(len(manifest.hashes)):
        yield blocks.pack(manifest, i, data[i * step : (i + 1) * step])


def said(payload: bytes, keys: dict[str, Keys], suite: int) -> bytes:
    header = Header(
        MAJOR, MINOR, suite, "update", "lab", "spring", 1, "a", 1, 1, "coordinator", 1, "train", bytes(32)
    )
    return seal(header, payload, keys["a"].sign, keys["coordinator"].public.receive)


def opened(frames: list[bytes], keys: dict[str, Keys]) -> None:
    """Check the signature, the seal of every block, and the hash of the whole update."""
    ring = {name: pair.public for name, pair in keys.items()}
    header, payload = unseal(frames[0], ring, keys["coordinator"].receive)
    place = codec.TaskId(header.round, header.phase, header.base)
    _, manifest = codec.decode(header.kind, payload, header.sender, place)
    assert isinstance(manifest, Manifest)
    whole = hashlib.sha256()
    for frame in frames[1:]:
        _, index, data = blocks.unpack(frame)
        piece = blocks.decrypted(manifest, index, data)
        whole.update(piece)
    assert whole.digest() == manifest.object


def overhead(keys: dict[str, Keys]) -> int:
    payload = codec.encode(ANSWER, b"")
    return len(said(payload, keys, SEALED)) - len(payload)


def seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun
