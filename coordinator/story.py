"""The server half at work: one generator a round, stepped on the worker's thread, replayed after a crash."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from coordinator.events import Advance
from coordinator.spool import Accepted, Spool
from methods.base import Ask, Member, Reply, Round, ServerHalf
from methods.bridge import LazyPayload, to_numpy, to_torch
from methods.plan import Plan
from protocol.messages import Arrays, Manifest


@dataclass(frozen=True, slots=True)
class Step:
    """Where the server half has come to: its next ask, or (None) the end of the round."""

    round: int
    ask: Ask | None
    manifest: Manifest | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    phase: str | None = None  # whose answers it was given; None: it began the round
    counted: Mapping[str, str] = field(default_factory=dict)  # device -> name of the answer that it was given


class Story:
    def __init__(self, plan: Plan, spool: Spool, rounds: int) -> None:
        self._spool, self._rounds = spool, rounds
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

        A step that found the disk full has been made; said again, it goes on at its broadcast.
        """
        counted = {device: answers[device].object.hex() for device in advance.devices}
        try:
            ask = self._unwritten or self._next(advance, members, answers)
        except StopIteration:
            self._round = None
            return Step(advance.round, None, None, dict(self.server.monitor()), advance.phase, counted)
        self._unwritten = ask
        manifest = self._spool.broadcasts.put(to_numpy(ask.payload), block) if ask.payload else None
        self._unwritten = None
        return Step(advance.round, ask, manifest, dict(self.server.monitor()), advance.phase, counted)

    def _next(self, advance: Advance, members: Sequence[Member], answers: Mapping[str, Accepted]) -> Ask:
        if advance.phase is None:
            self.server.begin(advance.round, members)
            evaluating = advance.round > self._rounds
            self._round = evaluation(self.server) if evaluating else self.server.round()
            return next(self._round)
        assert self._round is not None, "a round is stepped before it began"
        return self._round.send([self._reply(device, answers[device]) for device in sorted(advance.devices)])

    def _reply(self, device: str, answer: Accepted) -> Reply:
        arrays = self._spool.store(device).open(answer.object)
        return Reply(device, answer.examples, LazyPayload(arrays))


def evaluation(server: ServerHalf) -> Round:
    """After the last round: everybody measures what has come out of it."""
    yield Ask("evaluate", server.payload())
