"""Read the arrays of an update, decoded with the broadcast that the device has computed it from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from protofleet.coordinator.spool.spool import Accepted, Spool
from protofleet.methods.contract.bridge import LazyPayload
from protofleet.protocol.coding.update import DecodedArrays
from protofleet.protocol.settings.codec import CodecSettings, CodecStage
from protofleet.protocol.wire.arrays import Body
from protofleet.protocol.wire.messages import Arrays

NO_STAGES: Final[Mapping[str, CodecStage]] = {}
CHECKED: Final = 1 << 30  # an accepted update was smaller than the largest answer


class UpdateReader:
    """The reader of updates in a run; without a codec it returns the arrays as they are."""

    def __init__(self, spool: Spool, codec: CodecSettings | None) -> None:
        self._spool, self._stages = spool, codec.up if codec else NO_STAGES

    def accepted(self, answer: Accepted) -> LazyPayload:
        arrays = self._spool.store(answer.device).open(answer.object)
        return self.payload(arrays, answer.base, CHECKED)

    def payload(self, arrays: Arrays, base: bytes, most: int) -> LazyPayload:
        """Return the tensors of an update; raise Rejected if a bundle cannot be read.

        `most` is the largest size in bytes of a bundle before zlib has packed it.
        """
        if not self._stages or not isinstance(arrays, Body):
            return LazyPayload(arrays)
        reference = self._spool.broadcasts.open(base) if base else None
        return LazyPayload(DecodedArrays(arrays, self._stages, reference, most))
