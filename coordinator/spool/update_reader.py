"""The reader of updates: it decodes the arrays of an update with the broadcast that the device had received."""

from __future__ import annotations

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
from protofleet.protocol.wire.messages import Arrays

NO_STAGES: Final[Mapping[str, CodecStage]] = {}
# Limit in bytes for the unpacked bundle of an accepted update. A stricter limit was checked before the update was
# accepted.
CHECKED: Final = 1 << 30


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

    def accepted(self, answer: Accepted) -> LazyPayload:
        arrays = self._spool.store(answer.device).open(answer.object)
        return self.payload(arrays, answer.base, CHECKED)

    def payload(self, arrays: Arrays, base: bytes, most: int) -> LazyPayload:
        """Return the tensors of an update; raise Rejected if a bundle cannot be read.

        `most` is the limit for the size of a bundle in bytes after zlib has decompressed the bundle.
        """
        if not isinstance(arrays, Body) or not any(map(is_bundle, arrays)):
            return LazyPayload(arrays)
        reference = self._reference(base) if base else None
        return LazyPayload(DecodedArrays(arrays, self._stages, reference, most))

    def _reference(self, base: bytes) -> Body:
        """Return the arrays to which the differences of an update are added.

        These arrays are the method's own arrays, and not the rounded arrays that the device has received. So the
        rounding of the broadcast causes no error in the method's arrays.
        """
        exact = self._chain.exact(base) if self._chain else None
        return exact or self._spool.broadcasts.open(base)
