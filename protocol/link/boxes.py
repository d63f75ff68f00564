"""A manifest that fits no packet, as an object of its own: one array with the bytes of the plain manifest.

The key of the blocks stands outside, so that the box is the same whenever the same object is offered.
"""

from __future__ import annotations

from typing import Final

import msgpack
import numpy as np

from protofleet.protocol.storage.store import ObjectStore
from protofleet.protocol.wire import codec
from protofleet.protocol.wire.messages import Boxed, Manifest
from protofleet.protocol.wire.reasons import Reason, Rejected

ARRAY: Final = "manifest"
MOST: Final = (
    codec.SHORT_HASH * codec.MAX_BLOCKS + 8192
)  # bytes of a box: all hashes, and what stands beside them


def box(manifest: Manifest, store: ObjectStore, block: int) -> Manifest:
    """The manifest of the box, which lies in the store from now on. Neither has a key."""
    packed = msgpack.packb(codec.manifest_fields(manifest, key=False))
    return store.put({ARRAY: np.frombuffer(packed, np.uint8)}, block)


def unboxed(boxed: Boxed, store: ObjectStore) -> Manifest:
    """What is in a box that is here. Rejected where it is not what was announced."""
    found = codec.read_manifest(_content(store.open(boxed.box.object)))
    if (found.object, found.size, found.key) != (boxed.object, boxed.size, b""):
        raise Rejected(
            Reason.MALFORMED, f"the manifest in {boxed.box.object.hex()[:16]} is of another object"
        )
    return Manifest(found.object, found.size, found.block, found.hashes, found.parts, boxed.key)


def _content(body: object) -> bytes:
    array = body.get(ARRAY) if hasattr(body, "get") else None
    if array is None or array.dtype != np.uint8 or array.ndim != 1:
        raise Rejected(Reason.MALFORMED, f"a box without its array {ARRAY!r} of uint8")
    return bytes(array)
