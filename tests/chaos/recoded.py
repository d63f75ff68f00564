"""Code the broadcasts and updates of a run again, without the coordinator's chain and the devices' files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from protofleet.methods.contract.bridge import LazyPayload, to_numpy
from protofleet.methods.contract.plan import Plan
from protofleet.methods.parts.weights import first_weights
from protofleet.protocol.coding.delta import body_of, bytes_of, encode_broadcast
from protofleet.protocol.coding.update import DecodedArrays, chance_of, encode_arrays
from protofleet.protocol.wire.messages import Array, Arrays

MOST: int = 1 << 30  # The size of a bundle is not checked here.


@dataclass
class Recoded:
    """The codec of a run whose broadcasts all have the same arrays; without a codec, it changes nothing."""

    plan: Plan
    exact: Arrays = field(default_factory=dict)  # The arrays of the newest broadcast, before rounding.
    shown: bytes = b""  # The newest broadcast, as a device decodes it.
    # Device -> the rounding losses of its updates that were used.
    lost: dict[str, Mapping[str, np.ndarray]] = field(default_factory=dict)

    def broadcast(self, arrays: Arrays, number: int, phase: str) -> Arrays:
        """Return a broadcast as the devices decode it."""
        if self.plan.codec is None:
            return arrays
        if not self.shown:
            self.shown = bytes_of(to_numpy(first_weights(self.plan)))
        self.exact = {name: np.array(arrays[name]) for name in arrays}
        chance = chance_of(self.plan.seed, number, phase, "down")
        coded = encode_broadcast(arrays, self.plan.codec.down, body_of(self.shown), chance)
        self.shown = coded.decoded
        return body_of(self.shown)

    def update(self, device: str, arrays: Arrays, number: int, phase: str) -> tuple[Arrays, LazyPayload]:
        """Return the arrays that a device sends, and the arrays that the method gets."""
        if self.plan.codec is None:
            return arrays, LazyPayload(arrays)
        up, shown = self.plan.codec.up, body_of(self.shown)
        chance = chance_of(self.plan.seed, number, phase, device)
        coded = encode_arrays(arrays, up, shown, self.lost.get(device, {}), chance)
        self.lost[device] = coded.residual
        decoded = DecodedArrays(body_of(bytes_of(coded.arrays)), up, body_of(bytes_of(self.exact)), MOST)
        sent: dict[str, Array] = coded.arrays
        return sent, LazyPayload({name: decoded[name] for name in decoded})
