"""Run a server half from task to task, with the updates of the devices."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final

import torch

from protofleet.coordinator.server.capped import capped_members, capped_replies
from protofleet.coordinator.server.outliers import LEAST, outliers, sizes_by_device
from protofleet.coordinator.spool.spool import Accepted
from protofleet.methods.contract.base import Ask, Member, Reply, Round, ServerHalf, seeded
from protofleet.methods.contract.bridge import LazyPayload
from protofleet.methods.contract.confusion import confusion_wants
from protofleet.methods.contract.given import ask_of, first_ask, round_of
from protofleet.methods.contract.plan import Plan
from protofleet.methods.contract.wants import TensorSpec

NOTHING_BACK: Final[Mapping[str, TensorSpec]] = MappingProxyType({})


class Stepper:
    def __init__(
        self,
        plan: Plan,
        rounds: int,
        outlier: float,
        confusion: int,
        arrays: Callable[[Accepted], LazyPayload],
        weight_cap: float = 0.0,
        fleet: Callable[[], int] = lambda: 0,
    ) -> None:
        """Set up a server half; `fleet` returns the number of devices of the run."""
        self.server: ServerHalf = plan.server_half()
        self.aside: dict[str, str] = {}  # Device -> reason why its update for the current phase is not used.
        self._plan = plan
        self._rounds, self._outlier, self._arrays = rounds, outlier or math.inf, arrays
        self._fleet = fleet
        self._evaluation = partial(evaluation, wants=confusion_wants(plan.classes, confusion))
        self._weight_cap = weight_cap  # Largest weight as a multiple of the cohort's median; 0 means no cap.
        self._wants: Mapping[str, TensorSpec] = NOTHING_BACK  # Arrays that the current task requests.
        # Devices whose updates are not used in the rest of the current round.
        self._excluded: set[str] = set()
        self._sample = torch.randn(2, *plan.input_shape.axes, generator=seeded("a fixed input"))
        self._round: Round | None = None

    def begin(self, number: int, members: Sequence[Member], evaluate: bool = False) -> Ask:
        """Begin a round and return its first task. If `evaluate` is True, this is the task of the last evaluation.

        Raise SettingsError at the start of the run if the server half cannot serve the fleet.
        """
        self._excluded, self.aside = set(), {}
        self.server.fleet = max(self._fleet(), len(members))
        if number == 1:
            self._plan.demand_fleet_fit(self.server.fleet)
        self.server.begin(number, capped_members(members, self._weight_cap))
        evaluate = evaluate or number > self._rounds
        self._round = self._evaluation(self.server) if evaluate else round_of(self.server)
        return self._asked(first_ask(self.server, self._round))

    def send(self, answers: Mapping[str, Accepted]) -> Ask | None:
        """Pass the updates of a phase to the server half; return its next task, or None if the round is over."""
        assert self._round is not None, "a round is stepped before it began"
        self._put_aside({device: answers[device] for device in sorted(answers.keys() - self._excluded)})
        used = self.used(answers)
        claimed = [Reply(d, answers[d].examples, self._arrays(answers[d])) for d in sorted(used)]
        replies = capped_replies(claimed, self._wants, self._weight_cap)
        try:
            return self._asked(ask_of(self.server, self._round.send(replies)))
        except StopIteration:
            self._round = None
            return None

    def _asked(self, ask: Ask) -> Ask:
        self._wants = ask.wants
        return ask

    def used(self, answers: Mapping[str, Accepted]) -> dict[str, Accepted]:
        return {device: answer for device, answer in answers.items() if device not in self._excluded}

    def forget(self) -> None:
        self._round = None

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
    yield Ask("evaluate", server.payload(), wants)
