"""Store a manifest as an object, if the manifest is too large for a packet.

The object has one array with the bytes of the manifest. The array does not contain the key of the
blocks. So the bytes of the array are the same each time that the same object is offered.
"""

from __future__ import annotations

from typing import Final

import msgpack
import numpy as np

from protofleet.protocol.storage.store import ObjectStore
from protofleet.protocol.wire import codec
from protofleet.protocol.wire.messages import IndirectManifest, Manifest
from protofleet.protocol.wire.reasons import Reason, Rejected

ARRAY: Final = "manifest"
MAX_BYTES: Final = codec.SHORT_HASH * codec.MAX_BLOCKS + 8192  # bytes for all hashes and the other fields


def store(manifest: Manifest, objects: ObjectStore, block: int) -> Manifest:
    """Store a manifest as an object, and return the manifest of this object.

    The stored manifest and the returned manifest do not contain a key.
    """
    packed = msgpack.packb(codec.manifest_fields(manifest, key=False))
    return objects.put({ARRAY: np.frombuffer(packed, np.uint8)}, block)


def load(offer: IndirectManifest, objects: ObjectStore) -> Manifest:
    """Return the manifest that is stored as an object.

    Raise Rejected if this manifest does not describe the object that was offered.
    """
    found = codec.read_manifest(_content(objects.open(offer.manifest.object)))
    if (found.object, found.size, found.key) != (offer.object, offer.size, b""):
        raise Rejected(
            Reason.MALFORMED,
            f"the manifest in {offer.manifest.object.hex()[:16]} does not describe the offered object",
        )
    return Manifest(found.object, found.size, found.block, found.hashes, found.parts, offer.key)


def _content(body: object) -> bytes:
    array = body.get(ARRAY) if hasattr(body, "get") else None
    if array is None or array.dtype != np.uint8 or array.ndim != 1:
        raise Rejected(
            Reason.MALFORMED, f"an object with a manifest needs a one-dimensional array {ARRAY!r} of uint8"
        )
    return bytes(array)
