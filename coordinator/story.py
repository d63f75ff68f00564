"""The server half at work: one generator a round, stepped on the worker's thread, replayed after a crash."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch

from coordinator.events import Advance
from coordinator.index import RunMismatchError
from coordinator.outliers import LEAST, Outlier, outliers, sizes_of, worst
from coordinator.spool import Accepted, Spool
from methods.base import Ask, Member, Reply, Round, ServerHalf, seeded
from methods.bridge import LazyPayload, to_numpy, to_torch
from methods.plan import Plan
from protocol.faults import is_ours
from protocol.messages import Arrays, Manifest
from protocol.plain import plain
from protocol.reasons import Rejected

log = logging.getLogger("protofleet.coordinator")


MOST_WORDS: Final = 200  # letters of an error, for records and people


@dataclass(frozen=True, slots=True)
class Step:
    """Where the server half has come to: its next ask, or (None) the end of the round."""

    round: int
    ask: Ask | None
    manifest: Manifest | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    phase: str | None = None  # whose answers it was given; None: it began the round
    counted: Mapping[str, str] = field(default_factory=dict)  # device -> name of the answer that it was given
    aside: Mapping[str, str] = field(default_factory=dict)  # device -> why its answer to this phase was not
    fault: str = ""  # why nobody can go on from what the round has come to


class Story:
    def __init__(self, plan: Plan, spool: Spool, rounds: int, outlier: float = math.inf) -> None:
        self._spool, self._rounds, self._outlier = spool, rounds, outlier or math.inf
        self.errors = 0  # of the server half, with what devices have answered
        self._aside: set[str] = set()  # devices, in the round in hand
        self._now_aside: dict[str, str] = {}
        self._sample = torch.randn(2, plan.channels, plan.size, plan.size, generator=seeded("a fixed input"))
        self.server: ServerHalf = plan.server_half()
        self._round: Round | None = None
        self._unwritten: Ask | None = None  # the disk had no room for its broadcast
        if (saved := spool.state()) is not None:
            self.server.restore(to_torch(saved))

    def state(self) -> Arrays:
        return to_numpy(self.server.state())

    def restore(self) -> None:
        """Back to the last save."""
        self._round = self._unwritten = None
        if (saved := self._spool.state()) is not None:
            self.server.restore(to_torch(saved))

    def step(
        self, advance: Advance, members: Sequence[Member], answers: Mapping[str, Accepted], block: int
    ) -> Step:
        """Runs on the worker's thread; what it needs of the spool's index is handed to it.

        A step that found the disk full has been made; said again, it goes on at its broadcast. An error is no better
        than a state that is not finite: what is not ours came up with what devices have answered.
        """
        try:
            return self._step(advance, members, answers, block)
        except (Rejected, RunMismatchError):  # of what is on the disk
            raise
        except Exception as error:
            if is_ours(error) or (
                advance.round == 1 and advance.phase is None
            ):  # nobody has answered anything
                raise
            self.errors += 1
            where = f"after {advance.phase}" if advance.phase else "at its start"
            log.exception("an error of the server half in round %d, %s", advance.round, where)
            words = plain(f"the server half raised {type(error).__name__} {where}: {error}")[:MOST_WORDS]
            return Step(advance.round, None, None, phase=advance.phase, aside=self._now_aside, fault=words)

    def _step(
        self, advance: Advance, members: Sequence[Member], answers: Mapping[str, Accepted], block: int
    ) -> Step:
        try:
            ask = self._unwritten or self._next(advance, members, answers)
        except StopIteration:
            self._round = ask = None
        counted = {d: answers[d].object.hex() for d in advance.devices if d not in self._aside}
        said = (dict(self.server.monitor()), advance.phase, counted, self._now_aside)
        if ask is None:
            return Step(advance.round, None, None, *said, fault=self._fault())
        self._unwritten = ask
        manifest = self._spool.broadcasts.put(to_numpy(ask.payload), block) if ask.payload else None
        self._unwritten = None
        return Step(advance.round, ask, manifest, *said)

    def _next(self, advance: Advance, members: Sequence[Member], answers: Mapping[str, Accepted]) -> Ask:
        if advance.phase is None:
            self._aside, self._now_aside = set(), {}
            self.server.begin(advance.round, members)
            evaluating = advance.round > self._rounds
            self._round = evaluation(self.server) if evaluating else self.server.round()
            return next(self._round)
        assert self._round is not None, "a round is stepped before it began"
        self._put_aside({device: answers[device] for device in sorted(set(advance.devices) - self._aside)})
        used = sorted(set(advance.devices) - self._aside)
        return self._round.send([self._reply(device, answers[device]) for device in used])

    def _put_aside(self, answers: Mapping[str, Accepted]) -> None:
        """Who is out of all proportion in one phase is in no later one of the round."""
        found = {}
        if len(answers) >= LEAST and self._outlier < math.inf:
            found = outliers(
                {device: sizes_of(self._arrays(a)) for device, a in answers.items()}, self._outlier
            )
        self._now_aside = {device: one.words for device, one in found.items()}
        self._aside |= found.keys()

    def _fault(self) -> str:
        for name, value in self.server.state().items():
            if value.is_floating_point() and not bool(value.isfinite().all()):
                return f"{name} of the new state is not finite"
        return "" if self._predicts() else "what the new model predicts of a fixed input is not finite"

    def _predicts(self) -> bool:
        model = self.server.model
        training = model.training
        with torch.no_grad():
            finite = bool(model.eval()(self._sample).isfinite().all())
        model.train(training)
        return finite

    def worst(self, answers: Mapping[str, Accepted]) -> Outlier | None:
        """Of a phase whose answers brought the run to nothing. Runs on the worker's thread."""
        try:
            return worst({device: sizes_of(self._arrays(a)) for device, a in sorted(answers.items())})
        except (Rejected, RunMismatchError):
            raise
        except Exception as error:
            if is_ours(error):
                raise
            log.exception("an error in comparing answers; none is told from the others")
            return None

    def _arrays(self, answer: Accepted) -> LazyPayload:
        return LazyPayload(self._spool.store(answer.device).open(answer.object))

    def _reply(self, device: str, answer: Accepted) -> Reply:
        return Reply(device, answer.examples, self._arrays(answer))


def evaluation(server: ServerHalf) -> Round:
    """After the last round: everybody measures what has come out of it."""
    yield Ask("evaluate", server.payload())
