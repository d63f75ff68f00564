"""The bytes of a round before coding: the same arrays would have this size in a run without a codec.

The bytes are computed from shapes, so no number is decoded. A coordinator that was restarted computes the same bytes:
its replay makes the broadcasts again, and it finds the updates on the disk.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from protofleet.coordinator.spool.broadcast_chain import ChainLink
from protofleet.coordinator.spool.spool import Accepted, Spool
from protofleet.coordinator.spool.update_reader import UpdateReader
from protofleet.methods.contract.base import Payload
from protofleet.methods.contract.bridge import LazyPayload
from protofleet.methods.contract.plan import Plan
from protofleet.protocol.link.meter import DOWN, UP
from protofleet.protocol.storage.store import DamagedError
from protofleet.protocol.wire.arrays import DTYPES
from protofleet.protocol.wire.kinds import CONTROL
from protofleet.protocol.wire.reasons import Rejected

log = logging.getLogger("protofleet.coordinator")

Sizes = Mapping[str, int]  # Kind -> bytes.
NOTHING: Final[Sizes] = {}


class UncodedBytes:
    """The bytes of the open round before coding; a run without a codec counts nothing."""

    def __init__(self, plan: Plan, spool: Spool, reader: UpdateReader) -> None:
        self._kinds, self._spool, self._reader = plan.variant.kinds, spool, reader
        self._coded = plan.coding is not None
        # Device and object of each update that this process has received in the open round -> its sizes.
        self._updates: dict[tuple[str, bytes], Sizes] = {}
        self._round = 0
        # Exact arrays of a broadcast in the open round -> all broadcasts of the run with these arrays, and the sizes
        # of the arrays.
        self._broadcasts: dict[bytes, tuple[set[bytes], Sizes]] = {}

    def add_update(self, round: int, device: str, name: bytes, arrays: LazyPayload) -> None:
        if self._coded:
            self._open(round)
            self._updates[device, name] = self._sizes(arrays)

    def add_broadcast(self, round: int, base: bytes, arrays: Payload, chain: Sequence[ChainLink]) -> None:
        """Count the broadcast `base`; if the run has a chain, `base` is the last broadcast of the chain."""
        if not self._coded:
            return
        self._open(round)
        # Broadcasts of the same arrays may differ after rounding.
        exact = chain[-1].exact if chain else base
        alike = {link.base for link in chain if link.exact == exact} | {base}
        self._broadcasts[exact] = alike, self._sizes(arrays)

    def _open(self, round: int) -> None:
        if round != self._round:
            self._round, self._updates, self._broadcasts = round, {}, {}

    def of_round(self, round: int) -> dict[str, dict[str, int]]:
        """Return the bytes of a round by direction and kind when the round ends; {} without a codec."""
        if not self._coded:
            return {}
        up, down = Counter[str](), Counter[str]()
        for answer in self._spool.answers_of_round(round):
            up.update(self._of_update(answer))
        for alike, sizes in self._broadcasts.values() if round == self._round else ():
            # Without a codec, a broadcast that all devices have is not sent again.
            if self._spool.has_first_answer(round, alike):
                down.update(sizes)
        return {UP: dict(sorted(up.items())), DOWN: dict(sorted(down.items()))}

    def _of_update(self, answer: Accepted) -> Sizes:
        """Return the sizes of an accepted update; open the update if an earlier process has received it."""
        if (known := self._updates.get((answer.device, answer.object))) is not None:
            return known
        try:
            return self._sizes(self._reader.accepted(answer))
        except (Rejected, DamagedError, OSError) as error:
            log.warning("the bytes before coding lack the update of %s: %s", answer.device, error)
            return NOTHING

    def _sizes(self, arrays: Payload) -> Sizes:
        found: Counter[str] = Counter()
        for name in arrays:
            found[self._kinds.of(name)] += _bytes_of(arrays, name)
        return {kind: size for kind, size in found.items() if size and kind != CONTROL}


def _bytes_of(arrays: Payload, name: str) -> int:
    size: int
    if isinstance(arrays, LazyPayload):
        dtype, shape = arrays.dtype_and_shape(name)
        size = math.prod(shape) * DTYPES[dtype].itemsize
    else:
        size = arrays[name].nbytes
    return size
