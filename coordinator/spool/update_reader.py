"""The reader of updates: it decodes the arrays of an update with the broadcast that the device had received."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from protofleet.coordinator.spool.broadcast_chain import BroadcastChain
from protofleet.coordinator.spool.spool import Accepted, Spool
from protofleet.methods.contract.bridge import LazyPayload
from protofleet.methods.contract.plan import Plan
from protofleet.protocol.coding.update import DecodedArrays, is_bundle
from protofleet.protocol.settings.codec import CodecStage
from protofleet.protocol.settings.named_codecs import stages_of
from protofleet.protocol.wire.arrays import Body
from protofleet.protocol.wire.messages import Array, Arrays

NO_STAGES: Final[Mapping[str, CodecStage]] = {}
# Limit in bytes for the unpacked bundle of an accepted update. A stricter limit was checked before the update was
# accepted.
CHECKED: Final = 1 << 30
# Decoded updates of at most this size in bytes are kept in memory. A coordinator reads an update several times, and
# decoding a small update takes longer than copying it.
SMALL: Final = 1 << 16
MOST_KEPT: Final = (
    32 << 20
)  # Largest size in bytes of all kept updates together; the oldest is dropped first.


class DecodedUpdates:
    """The arrays of the newest small updates. The loop and the worker use it at the same time."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[bytes, bytes], dict[str, Array]] = OrderedDict()
        self._bytes, self._lock = 0, threading.Lock()

    def get(self, name: bytes, base: bytes) -> Arrays | None:
        with self._lock:
            return self._known.get((name, base))

    def put(self, name: bytes, base: bytes, decoded: DecodedArrays) -> Arrays:
        """Return the arrays of an update, and keep them if they are small."""
        if sum(map(decoded.bytes_of, decoded)) > SMALL:
            return decoded
        arrays = dict(decoded)
        with self._lock:
            if (name, base) not in self._known:
                self._known[name, base] = arrays
                self._bytes += bytes_of(arrays)
            while self._bytes > MOST_KEPT:
                self._bytes -= bytes_of(self._known.popitem(last=False)[1])
        return arrays


def bytes_of(arrays: Mapping[str, Array]) -> int:
    return sum(int(array.nbytes) for array in arrays.values())


def stages_of_updates(plan: Plan) -> Mapping[str, CodecStage]:
    """Return the stages by which the updates of a run are read.

    If the run does not round, its updates may be coded without loss or not at all, whatever the setting is now. A
    device may not read codecs, and the coordinator may have been started again with another setting.
    """
    codec = plan.codec or stages_of("lossless", plan.variant.kinds.declared)
    return codec.up if codec else NO_STAGES


class UpdateReader:
    """The reader of updates in a run. It does not change arrays that are not coded."""

    def __init__(self, spool: Spool, plan: Plan, chain: BroadcastChain | None = None) -> None:
        self._spool, self._stages, self._chain = spool, stages_of_updates(plan), chain
        self._decoded = DecodedUpdates()
        # The object of the last reference, and its arrays. All updates of a phase have the same reference, so its
        # table is read only once.
        self._last: tuple[bytes, Body] | None = None

    def arrays(self, answer: Accepted) -> Arrays:
        """Return the arrays of an accepted update, after the decoding of a codec."""
        stored = self._spool.store(answer.device).open(answer.object)
        if not isinstance(stored, Body) or not any(map(is_bundle, stored)):
            return stored
        reference = self._reference(answer.base) if answer.base else None
        return DecodedArrays(stored, self._stages, reference, CHECKED)

    def accepted(self, answer: Accepted) -> LazyPayload:
        known = self._decoded.get(answer.object, answer.base)
        if known is not None:
            return LazyPayload(known)
        arrays = self._spool.store(answer.device).open(answer.object)
        return self.payload(arrays, answer.base, CHECKED, answer.object)

    def payload(self, arrays: Arrays, base: bytes, most: int, name: bytes = b"") -> LazyPayload:
        """Return the tensors of an update; raise Rejected if a bundle cannot be read.

        `most` is the limit for the size of a bundle in bytes after zlib has decompressed the bundle. `name` is the
        object of the update, if it has one.
        """
        if not isinstance(arrays, Body) or not any(map(is_bundle, arrays)):
            return LazyPayload(arrays)
        reference = self._reference(base) if base else None
        decoded = DecodedArrays(arrays, self._stages, reference, most)
        return LazyPayload(self._decoded.put(name, base, decoded) if name else decoded)

    def _reference(self, base: bytes) -> Body:
        """Return the arrays to which the differences of an update are added.

        These arrays are the method's own arrays, and not the rounded arrays that the device has received. So the
        rounding of the broadcast causes no error in the method's arrays.
        """
        exact = self._chain.exact(base) if self._chain else b""
        store = self._chain.store if self._chain and exact else self._spool.broadcasts
        name, last = exact or base, self._last
        if last is None or last[0] != name:
            self._last = last = name, store.load(name)
        return last[1]
