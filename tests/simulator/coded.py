"""The coded arrays of an undisturbed run: what devices send and keep, and what the coordinator reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np

from protofleet.edge_client.state.file import Answer
from protofleet.methods.contract.bridge import LazyPayload
from protofleet.methods.contract.plan import Plan
from protofleet.protocol.coding.delta import body_of, bytes_of, encode_broadcast
from protofleet.protocol.coding.update import DecodedArrays, chance_of, encode_arrays
from protofleet.protocol.wire.arrays import Body
from protofleet.protocol.wire.messages import Arrays
from tests.simulator.rounding import check_rounding

CHECKED = 1 << 30  # The gate has checked the sizes of accepted bundles.
ByPhase: TypeAlias = Mapping[str, Arrays]  # Phase -> what rounding has lost.


class CodedUpdates:
    """The updates of an undisturbed device, in a run whose devices round.

    The residual of an update is that of the update which the task names as the last used one.
    """

    def __init__(self, plan: Plan, device: str) -> None:
        self._plan, self._device = plan, device
        self._after: dict[
            tuple[int, str], ByPhase
        ] = {}  # Round and phase -> the residuals after this update.

    def code(self, answer: Answer, payload: Arrays, broadcast: Arrays) -> Arrays:
        """Return the arrays that the device should have sent as this answer."""
        plan = self._plan
        if plan.codec is None:
            return payload
        before = self._after.get((answer.took_round, answer.took_phase), {})
        residual = before.get(answer.phase, {})
        chance = chance_of(plan.seed, answer.round, answer.phase, self._device)
        coded = encode_arrays(payload, plan.codec.up, broadcast, residual, chance)
        self._after[answer.round, answer.phase] = {**before, answer.phase: coded.residual}
        held = body_of(bytes_of(broadcast))
        decoded = DecodedArrays(body_of(bytes_of(coded.arrays)), plan.codec.up, held, CHECKED)
        wanted = {name: np.asarray(payload[name]) for name in payload}
        wanted |= {name: wanted[name] + residual[name] for name in wanted if name in residual}
        where = f"{self._device}'s answer to round {answer.round} {answer.phase}"
        check_rounding(wanted, held, decoded, plan.codec.up, where)
        return coded.arrays


class CodedBroadcasts:
    """The broadcasts of a run as devices decode them, and the method's own arrays of each."""

    def __init__(self, plan: Plan) -> None:
        self._stages = plan.codec.down if plan.codec else {}
        self._up = plan.codec.up if plan.codec else {}
        self._exact: dict[bytes, Body] = {}  # Name of a broadcast -> the method's arrays.
        self._newest: Body | None = None

    def decoded(self, arrays: Arrays) -> bytes:
        """Return the body of the next broadcast."""
        if not self._stages:
            return bytes_of(arrays)
        held = self._newest
        made = encode_broadcast(arrays, self._stages, held, chance_of()).decoded
        self._newest = body_of(made)
        if held is not None:
            check_rounding(arrays, held, self._newest, self._stages, "a broadcast")
        return made

    def keep(self, name: bytes, arrays: Arrays) -> None:
        self._exact[name] = body_of(bytes_of(arrays))

    def read(self, base: bytes, update: Arrays) -> LazyPayload:
        """Return the tensors of an update; its differences are added to the method's own arrays."""
        if not self._up:
            return LazyPayload(update)
        return LazyPayload(DecodedArrays(body_of(bytes_of(update)), self._up, self._exact.get(base), CHECKED))
