"""The undisturbed run: what the two halves compute from the same accepted answers, without network or crash."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from protofleet.coordinator.server.stepper import evaluation
from protofleet.edge_client.evaluate import Splits
from protofleet.edge_client.trainer.job import evaluate_at_end
from protofleet.methods.contract.base import Ask, ClientHalf, Payload, Reply
from protofleet.methods.contract.bridge import to_numpy, to_torch
from protofleet.methods.contract.plan import Plan
from protofleet.protocol.wire.arrays import encode
from protofleet.protocol.wire.names import EVALUATE
from tests.simulator.coded import CodedBroadcasts, CodedUpdates
from tests.simulator.history import History, Saved, Taken, Work, fingerprint
from tests.simulator.promises import demand


def check_server(plan: Plan, history: History) -> None:
    """Check I1 and I2: the result of each round follows from its accepted answers, each counted once."""
    last = {save.round: save for save in history.saves}
    server, shown = plan.server_half(), Shown(plan)
    shown_in: dict[tuple[int, str], bytes] = {}  # Round and phase -> broadcast.
    for number in range(1, plan.rounds + 2):
        if number not in last:
            return
        save = last[number]
        words = f"I1: at the start of round {number} the server is not where the answers so far lead"
        demand(fingerprint(to_numpy(server.state())) == save.state, words)
        if number + 1 not in last:
            return
        server.begin(number, [save.members[d] for d in save.cohort])
        trains = number <= (plan.rounds if history.last_training is None else history.last_training)
        story = server.round() if trains else evaluation(server)
        ask = next(story, None)
        while ask is not None:
            shown_in[number, ask.phase] = shown.name_of(ask)
            replies = _replies(history, save, ask.phase, shown, shown_in)
            try:
                ask = story.send(replies)
            except StopIteration:
                ask = None


def _replies(
    history: History, save: Saved, phase: str, shown: Shown, shown_in: Mapping[tuple[int, str], bytes]
) -> list[Reply]:
    base = shown_in[save.round, phase]
    place = f"round {save.round} attempt {save.attempt} {phase}"
    devices = history.closed.get((save.round, save.attempt, phase))
    demand(devices is not None, f"I3: {place} was never closed, and yet the run went on")
    assert devices is not None
    replies = []
    for device in devices:
        taken = history.taken.get((save.round, phase, device, base))
        taken = taken or _late(history, save, phase, device, shown_in)
        demand(
            taken is not None,
            f"I1: {place} counts {device}, of which no answer to this broadcast was accepted",
        )
        assert taken is not None
        arrays, weight = shown.coded.read(taken.answer.base, taken.arrays), 1.0
        if age := taken.answer.staleness:
            weight = float((1 + age) ** -history.policy.staleness_exponent)
        replies.append(Reply(device, taken.answer.examples, arrays, weight))
    return replies


def _late(
    history: History, save: Saved, phase: str, device: str, shown_in: Mapping[tuple[int, str], bytes]
) -> Taken | None:
    """Return the update of a device for the task of an earlier round, if it was accepted for this round."""
    ages = range(1, history.policy.staleness + 1) if history.policy.buffered else ()
    for age in ages:
        base = shown_in.get((save.round - age, phase), b"")
        taken = history.taken.get((save.round, phase, device, base))
        if taken is not None and taken.answer.staleness == age:
            return taken
    return None


def check_accepted(folder: Path, history: History) -> None:
    """Check I1: the device of each accepted answer worked it out, for the question that it got."""
    for (number, phase, device, base), taken in history.taken.items():
        if device in history.twins:
            continue
        answers = [work.answer for work in history.works[folder / device]]
        worked_out = {(a.round, a.phase, a.base, a.object) for a in answers}
        words = f"I1: {device} never worked out the answer to round {number} {phase} that was accepted of it"
        task = number - taken.answer.staleness
        demand((task, phase, base.hex(), taken.answer.object.hex()) in worked_out, words)


class Shown:
    """The broadcasts of a run as devices decode them, in a run whose broadcasts may be rounded."""

    def __init__(self, plan: Plan) -> None:
        self.coded = CodedBroadcasts(plan)

    def name_of(self, ask: Ask) -> bytes:
        """Return the name that the coordinator should have given to the next broadcast."""
        if not ask.payload:
            return b""
        arrays = to_numpy(ask.payload)
        name = hashlib.sha256(self.coded.decoded(arrays)).digest()
        self.coded.keep(name, arrays)
        return name


def worked_out(half: ClientHalf, ask: Ask, number: int, data: Splits, reports: str) -> Payload:
    """Return the answer of a half, as edge_client/trainer/job.py computes it.

    It measures only what is sent as an array.
    """
    half.begin(number)
    half.receive(ask.payload)
    if ask.phase == EVALUATE:
        half.after_last_round()
        return evaluate_at_end(half, data, reports)[0]
    return half.run(ask)


def check_device(plan: Plan, folder: Path, name: str, data: Splits, works: list[Work]) -> None:
    """Check I1: the answers and the half of a device equal those of an undisturbed device.

    The undisturbed device works through the same questions.
    """
    half = plan.client_half(data.train, name, validation=data.validation)
    updates = CodedUpdates(plan, name)
    for done in works:
        a = done.answer
        before = {key: value.clone() for key, value in half.state().items()} if a.phase == EVALUATE else None
        payload = worked_out(half, Ask(a.phase, to_torch(done.payload)), a.round, data, plan.variant.reports)
        whole = hashlib.sha256()
        for piece in encode(updates.code(a, to_numpy(payload), done.payload)):
            whole.update(piece)
        where = f"{folder.name}'s answer to round {a.round} {a.phase}"
        if before is not None:  # An evaluation only measures, so the half goes back.
            half.restore(before)
        demand(whole.hexdigest() == a.object, f"I1: {where} is not that of an undisturbed device")
        demand(fingerprint(to_numpy(half.state())) == done.half, f"I1: after {where} its half is another")
