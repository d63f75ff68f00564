"""Make the broadcast of a task from a delta and the broadcast that the device holds."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable

from protofleet.methods.contract.plan import Plan
from protofleet.protocol.coding.delta import apply_delta
from protofleet.protocol.storage.store import ObjectStore
from protofleet.protocol.wire.messages import Delta, Offer
from protofleet.protocol.wire.reasons import Rejected

log = logging.getLogger("protofleet.device")


def delta_reader(plan: Plan, store: ObjectStore) -> Callable[[Delta, Offer], bool] | None:
    """Return a function that puts the broadcast of a delta into the store; None if the run has no deltas.

    The function returns False if the delta does not lead to the broadcast. Then the device fetches the whole
    broadcast.
    """
    if plan.coding is None or not plan.coding.down:
        return None
    stages = plan.coding.down

    def apply(delta: Delta, broadcast: Offer) -> bool:
        held = store.open(delta.reference) if delta.reference else None
        steps = store.load(delta.manifest.object)
        try:
            body = apply_delta(steps, stages, held, broadcast.size)
        except Rejected as fault:
            log.warning(
                "a delta of %d bytes cannot be read, so the whole broadcast is fetched: %s",
                delta.manifest.size,
                fault,
            )
            return False
        finally:
            store.drop(delta.manifest.object)
        if hashlib.sha256(body).digest() != broadcast.object:
            log.warning(
                "a delta does not lead to the broadcast of its task, so the whole broadcast is fetched"
            )
            return False
        store.put_bytes(body, broadcast.object)
        return True

    return apply
