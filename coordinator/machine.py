"""The round, as a state machine: events in, commands out. No sockets, threads, clocks, files or tensors.

Rules for whoever edits this file:
- the order of commands is a contract: what must survive (Save, Accept, Close) comes before what is said;
- a decision may depend on the events and on `now`, on nothing else, so that a replay decides the same;
- replies are handed on sorted by device, so that the order of arrival cannot change a bit.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

from coordinator.events import (
    Accept,
    Advance,
    Advanced,
    Answered,
    Close,
    Command,
    Dismiss,
    Drop,
    Event,
    Finish,
    Joined,
    Left,
    Policy,
    Recovered,
    Repeat,
    Rollback,
    Save,
    Send,
    Woke,
)
from protocol.reasons import Problem, Reason


class Phase(Enum):
    GATHERING = auto()  # waiting for enough devices to start a round
    THINKING = auto()  # the server half is at work on its thread
    COLLECTING = auto()  # an ask is out; waiting for answers or the deadline
    FINISHED = auto()


@dataclass
class RoundMachine:
    policy: Policy
    seed: int = 0
    evaluate: bool = True  # one more round at the end in which everybody present is only asked to evaluate
    round: int = 1
    attempt: int = 0
    phase: Phase = Phase.GATHERING
    asked: str = ""  # name of the open phase
    base: bytes = b""  # broadcast that the open phase stands on
    roster: set[str] = field(default_factory=set)
    cohort: tuple[str, ...] = ()
    _answered: set[str] = field(default_factory=set)
    _accepted: dict[str, dict[str, bytes]] = field(default_factory=dict)
    _closed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _absent: dict[str, float] = field(default_factory=dict)  # of the cohort, since when
    _deadline: float | None = None
    _settled: float | None = None
    _ahead: list[Recovered] = field(
        default_factory=list
    )  # what had been decided of rounds after a replayed one

    def resume(self, past: Recovered) -> list[Command]:
        """Go on in the middle of a round: the first thing a coordinator does after a crash."""
        self.roster, self._ahead = set(past.roster), list(past.ahead)
        self._take_up(past)
        if self.round > self._last_round:
            return [*self._finish()]
        self.phase = Phase.THINKING
        return [Advance(self.round, None, ())]

    def _take_up(self, past: Recovered) -> None:
        self.round, self.attempt, self.cohort = past.round, past.attempt, past.cohort
        self._closed = dict(past.closed)
        self._accepted = {phase: dict(devices) for phase, devices in past.accepted.items()}

    def handle(self, event: Event, now: float) -> list[Command]:
        match event:
            case Joined(device):
                return [*self._join(device, now)]
            case Left(device):
                return [*self._leave(device, now)]
            case Answered():
                return [*self._answer(event), *self._maybe_close(now)]
            case Advanced(None):
                return [*self._end_round(now)]
            case Advanced(str(phase), base):
                return [*self._open(phase, base, now)]
            case Woke():
                return [*self._maybe_start(now), *self._maybe_close(now)]
        raise TypeError(f"{event!r} is no event")

    @property
    def wake_at(self) -> float | None:
        if self.phase is Phase.GATHERING:
            return self._settled
        if self.phase is not Phase.COLLECTING or self._deadline is None:
            return None
        if self._missing and self._missing <= set(self._absent) and len(self._answered) >= self._quorum:
            return min(
                self._deadline, max(self._absent[d] for d in self._missing) + self.policy.grace_seconds
            )
        return self._deadline

    @property
    def evaluating(self) -> bool:
        return self.round > self.policy.rounds

    @property
    def answered(self) -> frozenset[str]:
        return frozenset(self._answered)

    @property
    def _last_round(self) -> int:
        return self.policy.rounds + self.evaluate

    @property
    def _quorum(self) -> int:
        return 0 if self.evaluating else self.policy.quorum

    @property
    def _missing(self) -> set[str]:
        return set(self.cohort) - self._answered

    def _join(self, device: str, now: float) -> Iterator[Command]:
        self.roster.add(device)
        self._absent.pop(device, None)
        if self.phase is Phase.FINISHED:
            yield Dismiss(device)
        elif self.phase is Phase.COLLECTING and device in self._missing:
            yield Send(device, self.round, self.asked, self._seconds_left(now))
        yield from self._maybe_start(now)

    def _leave(self, device: str, now: float) -> Iterator[Command]:
        self.roster.discard(device)
        if device in self.cohort:
            self._absent.setdefault(device, now)
        if self.phase is Phase.GATHERING and len(self.roster) < self.policy.quorum:
            self._settled = None
        yield from self._maybe_close(now)

    def _maybe_start(self, now: float) -> Iterator[Command]:
        if self.phase is not Phase.GATHERING or len(self.roster) < self.policy.quorum:
            return
        p, here = self.policy, len(self.roster)
        gather = p.gather if (self.round, self.attempt) == (1, 0) else 0
        if self._settled is None:
            self._settled = now + (p.patience_seconds if here < gather else p.settle_seconds)
        if now >= self._settled or here == (gather or p.cohort):
            yield from self._start()

    def _start(self) -> Iterator[Command]:
        present = sorted(self.roster)
        size = len(present) if self.evaluating else self.policy.cohort or len(present)
        dice = random.Random(f"{self.seed}/{self.round}/{self.attempt}")
        self.cohort = tuple(sorted(dice.sample(present, min(size, len(present)))))
        self.phase, self._settled, self._absent = Phase.THINKING, None, {}
        yield Save(self.round, self.attempt, self.cohort)
        yield Advance(self.round, None, ())

    def _open(self, phase: str, base: bytes, now: float) -> Iterator[Command]:
        self.asked, self.base = phase, base
        known = self._accepted.setdefault(phase, {})
        if closed := self._closed.get(phase):
            self.cohort = closed
            if all(device in known and known[device] == base for device in closed):
                yield Advance(self.round, phase, closed)
                return
            # An answer has been lost to a damaged disk: its device still has it, and nobody else is asked.
        self._answered = {d for d in self.cohort if known.get(d) == base and d in known}
        self.phase = Phase.COLLECTING
        self._deadline = now + self.policy.patience_seconds
        for device in sorted(self._missing):
            yield Send(device, self.round, phase, self.policy.patience_seconds)
        yield from self._maybe_close(now)

    def _answer(self, event: Answered) -> Iterator[Command]:
        device, place = event.device, (event.device, event.round, event.phase)
        known = self._accepted.get(event.phase, {}) if event.round == self.round else {}
        if device in known and known[device] == event.base:
            yield Repeat(*place)
        elif self.phase is not Phase.COLLECTING or (event.round, event.phase) != (self.round, self.asked):
            yield Drop(*place, "late", Problem(Reason.LATE, f"round {self.round} is in hand"))
        elif device not in self.cohort:
            yield Drop(*place, "refused", Problem(Reason.NOT_INVITED, "not in this round's cohort"))
        elif event.base != self.base:
            yield Drop(*place, "late", Problem(Reason.LATE, "computed from another broadcast"))
        elif event.problem:
            yield Drop(*place, "refused", event.problem)
        else:
            self._answered.add(device)
            self._accepted[event.phase][device] = event.base
            yield Accept(*place)

    def _maybe_close(self, now: float) -> Iterator[Command]:
        if self.phase is not Phase.COLLECTING or self._deadline is None:
            return
        over = self.wake_at is not None and now >= self.wake_at
        if self._missing and not over:
            return
        if len(self._answered) < self._quorum:
            yield from self._again(now)
            return
        self.cohort = tuple(sorted(self._answered))  # later phases: only who answered this one
        self.phase, self._deadline = Phase.THINKING, None
        self._closed[self.asked] = self.cohort
        yield Close(self.round, self.asked, self.cohort)
        yield Advance(self.round, self.asked, self.cohort)

    def _again(self, now: float) -> Iterator[Command]:
        """Too few answered in time: the same round once more, from its beginning."""
        self.attempt += 1
        self.phase, self._deadline, self._closed = Phase.GATHERING, None, {}
        yield Rollback()
        yield from self._maybe_start(now)

    def _end_round(self, now: float) -> Iterator[Command]:
        self.round, self.attempt = self.round + 1, 0
        self._accepted, self._closed, self._answered = {}, {}, set()
        if self._ahead:
            self._take_up(self._ahead.pop(0))
            yield Save(self.round, self.attempt, self.cohort)
            if self.round > self._last_round:
                yield from self._finish()
            else:
                self.phase = Phase.THINKING
                yield Advance(self.round, None, ())
        elif self.round > self._last_round:
            yield Save(self.round, 0, ())
            yield from self._finish()
        elif self.evaluating or len(self.roster) >= self.policy.quorum:
            yield from self._start()
        else:
            self.phase = Phase.GATHERING

    def _finish(self) -> Iterator[Command]:
        self.phase, self._deadline = Phase.FINISHED, None
        yield Finish(self.policy.rounds)
        yield from (Dismiss(device) for device in sorted(self.roster))

    def _seconds_left(self, now: float) -> float:
        return max(0.0, (self._deadline or now) - now)
