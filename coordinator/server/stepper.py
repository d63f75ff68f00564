"""Run a server half from task to task, with the updates of the devices."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final

import torch

from protofleet.coordinator.robust.combined import AveragedPhase, combined
from protofleet.coordinator.robust.fit import demand_covered
from protofleet.coordinator.round.robust import Robust
from protofleet.coordinator.secagg.phase import SummedPhases, SumPhase
from protofleet.coordinator.server.capped import capped_members, capped_replies, counted_once
from protofleet.coordinator.server.outliers import LEAST, outliers, sizes_by_device
from protofleet.coordinator.spool.spool import Accepted
from protofleet.methods.contract.base import Ask, Member, Reply, Round, ServerHalf, seeded
from protofleet.methods.contract.bridge import LazyPayload
from protofleet.methods.contract.confusion import confusion_wants
from protofleet.methods.contract.given import ask_of, first_ask, round_of
from protofleet.methods.contract.plan import Plan
from protofleet.methods.contract.wants import TensorSpec
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.wire.names import EVALUATE

NOTHING_BACK: Final[Mapping[str, TensorSpec]] = MappingProxyType({})


class Stepper:
    def __init__(
        self,
        plan: Plan,
        outlier: float,
        confusion: int,
        arrays: Callable[[Accepted], LazyPayload],
        weight_cap: float = 0.0,
        fleet: Callable[[], int] = lambda: 0,
        weight_of: Callable[[int], float] = lambda staleness: 1.0,
        robust: Robust | None = None,
        summed: SummedPhases | None = None,
    ) -> None:
        """Set up a server half; `fleet` returns the number of devices of the run.

        `weight_of` returns the weight of an update from the age of its task, in rounds. `summed` is given for a run
        whose updates are learned only as a sum.
        """
        self.server: ServerHalf = plan.server_half()
        self.aside: dict[str, str] = {}  # Device -> reason why its update for the current phase is not used.
        self._plan = plan
        self._outlier, self._arrays = outlier or math.inf, arrays
        self._fleet, self._weight_of = fleet, weight_of
        self._evaluation = partial(evaluation, wants=confusion_wants(plan.classes, confusion))
        self._weight_cap = weight_cap  # Largest weight as a multiple of the cohort's median; 0 means no cap.
        self._wants: Mapping[str, TensorSpec] = NOTHING_BACK  # Arrays that the current task requests.
        # Rules that replace the mean of an averaged phase. If no rule replaces it, the server half gets all replies.
        self._robust = robust if robust and robust.rules else None
        self._averaged: AveragedPhase | None = None
        # Devices whose updates are not used in the rest of the current round.
        self._excluded: set[str] = set()
        self._sample = torch.randn(2, *plan.input_shape.axes, generator=seeded("a fixed input"))
        self._round: Round | None = None
        self._summed, self._members = summed, tuple[Member, ...]()
        self._attempt = 0
        self._sum: SumPhase | None = None  # The attempt to sum the updates of the open phase.
        self.forgotten: tuple[str, ...] = ()  # Devices that the server half forgot in the last step.
        if self.server.keeps_answers:
            self.server.capped = partial(capped_replies, factor=weight_cap)

    def begin(
        self, number: int, members: Sequence[Member], evaluate: bool = False,
        enrolled: Collection[str] | None = None, attempt: int = 0,
    ) -> Ask:  # fmt: skip
        """Begin a round and return its first task. If `evaluate` is True, this is the task of an evaluation.

        `attempt` is the number of times that the round has begun again.

        The server half forgets the kept answers of devices that are not in `enrolled`; None means that it forgets
        none. Raise SettingsError at the start of the run if the server half cannot serve the fleet, and at the last
        evaluation if its state cannot predict.
        """
        self._excluded, self.aside, self._sum = set(), {}, None
        self._members, self._attempt = tuple(members), attempt
        self._forget_all_but(enrolled)
        self.server.fleet = max(self._fleet(), len(members))
        if number == 1:
            self._plan.demand_fleet_fit(self.server.fleet)
        keeps = self.server.keeps_answers
        if self._plan.dp is not None and self._plan.variant.needs_counts:
            members = counted_once(members, self._plan.classes)
        self.server.begin(number, list(members) if keeps else capped_members(members, self._weight_cap))
        if evaluate and (reason := self.server.lacking()):
            raise SettingsError(f"{self._plan.method}: {reason}")
        self._round = self._evaluation(self.server) if evaluate else round_of(self.server)
        return self._asked(first_ask(self.server, self._round))

    def send(self, answers: Mapping[str, Accepted], enrolled: Collection[str] | None = None) -> Ask | None:
        """Pass the updates of a phase to the server half; return its next task, or None if the round is over.

        At the end of a round, the server half forgets devices as in `begin`, so no later state has their answers.
        """
        assert self._round is not None, "a round is stepped before it began"
        if self._sum is not None:
            return self._send_to_sum(self._sum, answers, enrolled)
        self._put_aside({device: answers[device] for device in sorted(answers.keys() - self._excluded)})
        used = self.used(answers)
        claimed = [self.reply(answers[d]) for d in sorted(used)]
        keeps = self.server.keeps_answers
        replies = claimed if keeps else capped_replies(claimed, self._wants, self._weight_cap)
        if self._robust and self._averaged:
            replies = combined(replies, self._averaged, self._robust)
        return self._send_to_half(replies, enrolled)

    def _send_to_half(self, replies: Sequence[Reply], enrolled: Collection[str] | None) -> Ask | None:
        assert self._round is not None, "a round is stepped before it began"
        self.forgotten = ()
        try:
            return self._asked(ask_of(self.server, self._round.send(replies)))
        except StopIteration:
            self._round = None
        self._forget_all_but(enrolled)
        return None

    def _send_to_sum(
        self, attempt: SumPhase, answers: Mapping[str, Accepted], enrolled: Collection[str] | None
    ) -> Ask | None:
        """Pass a step of a masked sum on. After the last step, the server half gets the one reply of the phase."""
        self.aside, self.forgotten = {}, ()
        try:
            return attempt.send([self.reply(answers[device]) for device in sorted(answers)])
        except StopIteration as end:
            self._sum, mean = None, end.value
        return self._send_to_half([mean], enrolled)

    def reply(self, answer: Accepted) -> Reply:
        weight = self._weight_of(answer.staleness) if answer.staleness else 1.0
        return Reply(answer.device, answer.examples, self._arrays(answer), weight)

    def _forget_all_but(self, enrolled: Collection[str] | None) -> None:
        gone = set() if enrolled is None else {*self.server.answered()}.difference(enrolled)
        self.forgotten = tuple(sorted(gone))
        if gone:
            self.server.forget(self.forgotten)

    def _asked(self, ask: Ask) -> Ask:
        self._wants, self._averaged = ask.wants, None
        if self._robust and (averaged := self._plan.variant.averaged.get(ask.phase)):
            demand_covered(self._plan.method, averaged, ask)
            counts = {member.device: member.counts for member in self.server.cohort}
            self._averaged = AveragedPhase(averaged, ask.wants, ask.payload, self._statistics(), counts)
        if self._summed is None or ask.phase == EVALUATE:
            return ask
        self._sum = self._summed.conducted(ask, self.server.number, self._attempt, self._members)
        return next(self._sum)

    def _statistics(self) -> frozenset[str]:
        """Return the names of the arrays with running statistics of the model, such as those of a batch norm."""
        buffers = {name for name, _ in self.server.model.named_buffers()}
        return frozenset(name for name in self._wants if name.partition(".")[2] in buffers)

    def used(self, answers: Mapping[str, Accepted]) -> dict[str, Accepted]:
        return {device: answer for device, answer in answers.items() if device not in self._excluded}

    def forget(self) -> None:
        self._round = self._sum = None

    def fault(self) -> str:
        """Return why no device can go on from the result of the round; "" if the devices can go on."""
        for name, value in self.server.state().items():
            if value.is_floating_point() and not bool(value.isfinite().all()):
                return f"{name} of the new state is not finite"
        return "" if self._predicts() else "what the new model predicts of a fixed input is not finite"

    def _put_aside(self, answers: Mapping[str, Accepted]) -> None:
        """Exclude outliers of this phase from the rest of the round."""
        judged = len(answers) >= LEAST and self._outlier < math.inf
        found = outliers(sizes_by_device(answers, self._arrays), self._outlier) if judged else {}
        self.aside = {device: one.words for device, one in found.items()}
        self._excluded |= found.keys()

    def _predicts(self) -> bool:
        model = self.server.model
        training = model.training
        with torch.no_grad():
            finite = bool(model.eval()(self._sample).isfinite().all())
        model.train(training)
        return finite


def evaluation(server: ServerHalf, wants: Mapping[str, TensorSpec] = NOTHING_BACK) -> Round:
    """Make the round of an evaluation, in which all devices only measure the current model."""
    yield Ask(EVALUATE, server.payload(), wants)
