"""Code the arrays of an update, and keep what rounding has lost for the next one.

The residual of an update counts only if the coordinator has used the update, which the next task says (`took`). So
the states after the last updates are kept, and the one before them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from protofleet.edge_client.state.device import DeviceState
from protofleet.edge_client.state.residuals import Residuals
from protofleet.edge_client.work_queue import Question
from protofleet.methods.contract.plan import Plan
from protofleet.protocol.coding.update import chance_of, encode_arrays
from protofleet.protocol.wire.messages import NOTHING, Arrays


@dataclass(frozen=True)
class CodedAnswer:
    arrays: Arrays
    residuals: Sequence[Residuals]  # the states to keep, oldest first


def code_answer(
    plan: Plan, device: str, state: DeviceState, question: Question, payload: Arrays, broadcast: Arrays
) -> CodedAnswer:
    """Return the coded update, and the residuals to save with it; without a codec the arrays as they are."""
    if plan.codec is None:
        return CodedAnswer(payload, ())
    kept = residuals_before(state.saved.residuals, question.took)
    before = kept[-1].objects.get(question.phase, "")
    residual = state.store.open(bytes.fromhex(before)) if before else NOTHING
    chance = chance_of(plan.seed, question.round, question.phase, device)
    coded = encode_arrays(payload, plan.codec.up, broadcast, residual, chance)
    objects = dict(kept[-1].objects)
    objects[question.phase] = state.store.put(coded.residual).object.hex() if coded.residual else ""
    after = Residuals(question.round, question.phase, objects)
    # The states of this round, and the one before it, which holds if the round begins again without this device.
    before_round = [place for place, one in enumerate(kept) if one.round < question.round][-1:]
    return CodedAnswer(coded.arrays, (*kept[before_round[0] if before_round else 0 :], after))


def residuals_before(saved: Sequence[Residuals], took: tuple[int, str] | None) -> list[Residuals]:
    """Return the states up to the one that holds for the next update; there is at least one.

    It is the state after the update that the coordinator has used last. If that update is older than all of them, it
    is the oldest state.
    """
    for place, one in enumerate(saved):
        if (one.round, one.phase) == took:
            return list(saved[: place + 1])
    return list(saved[:1]) or [Residuals()]
