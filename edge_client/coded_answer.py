"""Code the arrays of an update, and keep the rounding errors (the residual) for the device's next update.

The residual of an update counts only if the coordinator has used the update. In the next task, the field `took` names
the last update that the coordinator has used. The device cannot know in advance which update this will be. So the
device keeps the residuals from before its last updates, and also the residuals after each of these updates.
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
    plan: Plan | None, device: str, state: DeviceState, question: Question, payload: Arrays, broadcast: Arrays
) -> CodedAnswer:
    """Return the coded update and the residuals to save with it; without a codec, return the arrays unchanged."""
    if plan is None or plan.coding is None:
        return CodedAnswer(payload, ())
    stages = plan.coding.up
    chance = chance_of(plan.seed, question.round, question.phase, device)
    if not any(stage.feedback for stage in stages.values()):
        return CodedAnswer(encode_arrays(payload, stages, broadcast, NOTHING, chance).arrays, ())
    kept = residuals_before(state.saved.residuals, question.took)
    before = kept[-1].objects.get(question.phase, "")
    residual = state.store.open(bytes.fromhex(before)) if before else NOTHING
    coded = encode_arrays(payload, stages, broadcast, residual, chance)
    objects = dict(kept[-1].objects)
    objects[question.phase] = state.store.put(coded.residual).object.hex() if coded.residual else ""
    after = Residuals(question.round, question.phase, objects)
    # Keep the states of this round. Also keep the last state before this round, in case the round begins again.
    before_round = [place for place, one in enumerate(kept) if one.round < question.round][-1:]
    return CodedAnswer(coded.arrays, (*kept[before_round[0] if before_round else 0 :], after))


def residuals_before(saved: Sequence[Residuals], took: tuple[int, str] | None) -> list[Residuals]:
    """Return the saved states up to the state from which the next update continues.

    `took` is the update that the coordinator has used last. The next update continues from the state after `took`. If
    that state is not saved, the next update continues from the oldest saved state. If no state is saved, the result
    is one empty state.
    """
    for place, one in enumerate(saved):
        if (one.round, one.phase) == took:
            return list(saved[: place + 1])
    return list(saved[:1]) or [Residuals()]
