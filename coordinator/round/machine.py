"""The round as a state machine: it takes events and returns commands.

The machine uses no sockets, threads, clocks, files or tensors. One table, RoundMachine.HANDLERS at the end
of the class, defines which events are legal at each stage, and the handler of each event.

Rules for a person who edits this file:
- A new event or stage gets its handlers in the table. A handler decides from the data, not from the stage.
- The order of commands is a contract: commands that store data (Save, Accept, Close) come before messages.
- A decision may depend only on the events and on `now`, so that a replay makes the same decisions.
- Updates are sorted by device before they are passed on. So their order of arrival cannot change the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, TypeAlias

from protofleet.coordinator.round.buffer import Buffer
from protofleet.coordinator.round.cohort import CohortSelection
from protofleet.coordinator.round.events import (
    BUDGET,
    NOBODY_LEFT,
    OPERATOR,
    Accept,
    Advance,
    Advanced,
    Answered,
    Blame,
    Blamed,
    Budgeted,
    Close,
    Command,
    Deselected,
    Dismiss,
    Diverge,
    Drop,
    EndEarly,
    Event,
    Extended,
    Finish,
    IllegalEventError,
    Joined,
    Judge,
    Left,
    Open,
    Pause,
    Paused,
    PutAside,
    Recovered,
    Repeat,
    Rollback,
    Save,
    SavePause,
    SaveRounds,
    Send,
    SentTask,
    Stage,
    Stopped,
    Unenrolled,
    Woke,
)
from protofleet.coordinator.round.flapping import FlapDetector
from protofleet.coordinator.round.pace import LOOK_SECONDS, Pace, hours_of
from protofleet.coordinator.round.policy import Policy
from protofleet.coordinator.round.silence import SilentDevices
from protofleet.coordinator.round.stop import StopRule
from protofleet.coordinator.round.stragglers import StragglerDeadline
from protofleet.coordinator.round.sum_cohorts import SumCohorts
from protofleet.coordinator.round.trials import Trials
from protofleet.coordinator.round.verdicts import Verdicts
from protofleet.protocol.wire.name_list import first_names
from protofleet.protocol.wire.names import EVALUATE
from protofleet.protocol.wire.reasons import Problem, Reason

ALL_HAVE_ANSWERED: Final = "all enrolled devices have answered"
MOST_NAMED: Final = 10  # Largest number of absent devices that the reason of an early end names.

Handler: TypeAlias = "Callable[[RoundMachine, Any, float], Iterable[Command]]"


@dataclass
class RoundMachine:
    policy: Policy
    rounds: int  # Number of rounds of training. An operator may change it until the last evaluation begins.
    seed: int = 0
    # True if one more round follows the training. In this last round, all present devices only measure.
    evaluate: bool = True
    # False if the coordinator learns only the sum of the updates. Then it can leave out no single update.
    individuals: bool = True
    way_out: str = "lower method.lr"  # Advice to the operator if the run diverges; "" if there is no advice.
    round: int = 1
    attempt: int = 0
    stage: Stage = Stage.GATHERING
    asked: str = ""  # Name of the open phase.
    base: bytes = b""  # SHA-256 of the broadcast of the open phase.
    roster: set[str] = field(default_factory=set)
    cohort: tuple[str, ...] = ()
    stopped: str = ""  # Reason why policy.stop has ended the training before its last round, or "".
    verdicts: Verdicts = field(default_factory=Verdicts)
    silent: SilentDevices = field(default_factory=SilentDevices)
    trials: Trials = field(default_factory=Trials)
    sums: SumCohorts = field(default_factory=SumCohorts)
    _answered: set[str] = field(default_factory=set)  # Devices whose updates for the open task were accepted.
    # Devices of the cohort whose updates are neither accepted nor refused yet, while the phase is open.
    _missing: set[str] = field(default_factory=set)
    _least: int = 0  # Fewest updates of the open phase, if it is a phase of a masked sum; otherwise 0.
    # True if a device that answers the open phase takes part in no other attempt of the round. Then too few updates
    # do not make the round begin again: it ends without a result.
    _final: bool = False
    _short: bool = False  # True if the open phase is a short phase of a masked sum.
    _closed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    # Absent device of the cohort -> time since which it is absent.
    _absent: dict[str, float] = field(default_factory=dict)
    # Devices whose enrolment has ended; they receive no task before they join again.
    _unenrolled: set[str] = field(default_factory=set)
    # Devices of the open round that the run does not select any more; they leave the roster when the round ends.
    _deselected: set[str] = field(default_factory=set)
    _deadline: float | None = None
    # Unix time at which the next round may begin, while the policy delays it; else 0.
    next_round_at: float = 0.0
    _look_at: float | None = None  # Time at which the machine checks again whether the round may begin.
    _earlier: float | None = None  # Seconds that an earlier process spent on the open round.
    # Round -> devices whose updates made the round fail; these updates are put aside.
    _aside: dict[int, tuple[str, ...]] = field(default_factory=dict)
    # Later rounds that had begun before a crash; they are replayed after this round.
    _later_rounds: list[Recovered] = field(default_factory=list)
    _present: tuple[str, ...] = ()  # Devices that were present when the cohort was drawn.
    # The cohort that was drawn for the round. It is set while all present devices evaluate before the round.
    _drawn: tuple[str, ...] | None = None
    _stopped_after: int | None = None  # The last round of training, if policy.stop has ended the training.
    budget: Budgeted = field(default_factory=Budgeted)
    # Devices that were present when the cohort was drawn, but got no task because of their budget.
    unfunded: frozenset[str] = frozenset()
    ended_early: EndEarly | None = None  # The end of the training before its last round.
    paused: str = ""  # Reason why an operator has paused the run; "" if the run is not paused.
    # Devices whose answers the server half keeps; training does not ask them.
    kept: frozenset[str] = frozenset()
    # Time until which the run waits for a device that has not answered yet; None if it does not wait for one.
    _wait_for_new: float | None = None
    # Enrolled devices whose answers the server half did not keep at the end of the last round.
    _left: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.selection = CohortSelection(self.policy, self.seed)
        self.stop_rule = StopRule(self.policy.stop)
        self.straggler_deadline = StragglerDeadline(
            self.policy.straggler_factor, self.policy.straggler_seconds
        )
        self.buffer = Buffer(self.policy)
        self.flaps = FlapDetector(self.policy.flaps, self.policy.flap_seconds)
        self.pace = Pace(self.policy.pause_seconds, hours_of(self.policy.hours))

    def resume(self, past: Recovered) -> list[Command]:
        """Go on with a round in which an earlier process died, and return the first commands."""
        self.roster, self._later_rounds, self._aside = set(past.roster), list(past.ahead), dict(past.aside)
        self.trials.resume(past.tried)
        self.verdicts.last = {d: (number, dict(bases)) for d, (number, bases) in past.earlier.items()}
        self.stop_rule.measured = dict(past.judged)
        if past.stopped:
            self._stopped_after, self.stopped = past.stopped
        self.ended_early = past.ended_early
        self.buffer.restore(past.tasks, max([past.round, *(later.round for later in past.ahead)]))
        self._restore_round(past)
        self.pace.ended = past.ended
        if past.diverged:
            return [*self._diverge(past.diverged)]
        if self.round > self._last_round or self.is_stopped:
            return [*self._finish()]
        self.stage = Stage.COMPUTING
        return [self._first_step()]

    def _restore_round(self, past: Recovered) -> None:
        self.round, self.attempt, self.cohort = past.round, past.attempt, past.cohort
        self._earlier = past.seconds
        self._present, self._drawn, self.unfunded = tuple(sorted(past.roster)), None, frozenset()
        self.stop_rule.restore(self.stop_rule.measured, past.round)
        # The replay of this round decides again whether policy.stop ends the training.
        if self._stopped_after is not None and self._stopped_after >= past.round:
            self._stopped_after, self.stopped = None, ""
        self._closed = dict(past.closed)
        self.verdicts.begin_round(past.accepted, past.late)

    def handle(self, event: Event, now: float, wall: float | None = None) -> list[Command]:
        """Handle an event and return the commands that follow from it.

        `wall` is the Unix time, which policy.hours needs; if it is missing, `now` is used as the Unix time.
        If the table at the end of this class has no handler for the event, raise IllegalEventError and change
        nothing.
        """
        handler = self.HANDLERS[self.stage].get(type(event))
        if handler is None:
            raise IllegalEventError(f"{event!r} cannot happen while the run is {self.stage.name.lower()}")
        self.pace.wall = now if wall is None else wall
        return [*handler(self, event, now)]

    @property
    def wake_at(self) -> float | None:
        if self.stage is Stage.GATHERING:
            if self.paused:
                return None
            found = self.selection.settled if self._look_at is None else self._look_at
            over = None if self._funded or self._waits_for_month else self._wait_for_new
            return min((t for t in (found, over, self.sums.wait_until) if t is not None), default=None)
        if self.stage is not Stage.COLLECTING or self._deadline is None:
            return None
        if len(self._answered) < self._quorum and not self._quorum_is_unreachable:
            return self._deadline
        # A short phase waits for each device, because a device that is left out of a sum costs a share of its secret.
        if self._short or (self.buffer.is_on and not self.evaluating):
            return self._grace_ends(self._deadline)
        expected = len(self._answered) + len(self._missing) - len(self._missing & self._absent.keys())
        quorum = 0 if self._quorum_is_unreachable else self._quorum
        latest = min(
            self._deadline, self.straggler_deadline.at(self._answered, self._missing, expected, quorum)
        )
        return self._grace_ends(latest)

    def _grace_ends(self, latest: float) -> float:
        """Return the time at which the wait for missing devices ends if all of them are absent, or `latest`."""
        if self._missing and self._missing <= self._absent.keys():
            return min(latest, max(self._absent[d] for d in self._missing) + self.policy.grace_seconds)
        return latest

    @property
    def is_stopped(self) -> bool:
        """Return whether an operator has stopped the run."""
        return self.ended_early is not None and self.ended_early.by == OPERATOR

    @property
    def is_last_evaluation(self) -> bool:
        """Return whether the training is over, and all present devices only measure the result."""
        return self.round > self._last_training

    @property
    def has_ended_training(self) -> bool:
        """Return whether the last evaluation has begun, or is stored already and is replayed after this round."""
        return self.stage is Stage.FINISHED or self._newest_begun > self._last_training

    @property
    def least_rounds(self) -> int:
        """Return the number of rounds of training that have begun already, but at least 1."""
        return max(1, self._newest_begun)

    @property
    def _newest_begun(self) -> int:
        has_begun = self.stage is not Stage.GATHERING or self.attempt > 0
        return max(
            [self.round if has_begun else self.round - 1, *(later.round for later in self._later_rounds)]
        )

    @property
    def left_to_ask(self) -> AbstractSet[str]:
        """Return the enrolled devices that have not answered, while the run waits for one of them."""
        return frozenset() if self._wait_for_new is None else self._left

    @property
    def leaves_out(self) -> bool:
        """Return whether some devices that were present when the cohort was drawn are not in the cohort."""
        drawn = self.cohort if self._drawn is None else self._drawn
        return not set(drawn).issuperset(self._present)

    @property
    def present(self) -> tuple[str, ...]:
        """Return the devices that were present when the cohort was chosen."""
        return self._present

    @property
    def measured_by_all(self) -> Mapping[str, tuple[str, ...]]:
        """Return the closed phases whose task was sent to all present devices.

        The value of each phase is the list of the devices whose updates are used.
        """
        if EVALUATE in self._closed:
            return {EVALUATE: self._closed[EVALUATE]}
        return {} if self.leaves_out else dict(self._closed)

    @property
    def evaluating(self) -> bool:
        """Return whether the devices only measure in the open task, and do not train."""
        return self.is_last_evaluation or self._drawn is not None

    @property
    def waited_for(self) -> AbstractSet[str]:
        """Return the devices whose updates for the open task are missing.

        In a buffered round, these are not the devices that still work on an earlier task.
        """
        if self.stage is not Stage.COLLECTING:
            return frozenset()
        return self._missing - self.at_work if self.buffer.is_on else self._missing

    @property
    def at_work(self) -> AbstractSet[str]:
        """Return the devices that still work on the task of an earlier round, in a run with buffered rounds."""
        return self.buffer.working(self.round)

    @property
    def recipients(self) -> tuple[str, ...]:
        """Return the devices of the cohort that get the open task without asking for it."""
        if self.evaluating or not self.buffer.is_on:
            return self.cohort
        return tuple(sorted({*self.cohort} - self.at_work))

    @property
    def here_for_sum(self) -> set[str]:
        """Return the present devices with which a masked sum can count; a silent device may send no update."""
        return self._funded - self.silent.devices

    @property
    def answered(self) -> AbstractSet[str]:
        return self._answered

    def counts_on(self, device: str) -> bool:
        """Return whether the device is present and the run waits for nothing from it.

        Then the run needs no further hello of the device.
        """
        is_waited_for = self.stage in (Stage.GATHERING, Stage.FINISHED) or device in self.waited_for
        return device in self.roster and device not in self._absent and not is_waited_for

    def was_asked(self, device: str) -> bool:
        """Return whether the open task was sent to the device or will be sent to it."""
        return device in self._missing or device in self._answered or device in self.verdicts.refused

    def expects_late(self, device: str, round: int, phase: str, base: bytes) -> bool:
        """Return whether this update, which is not for the open task, can count in a buffered round.

        The answer is False if the update is here already and waits for the next round.
        """
        event, waiting = Answered(device, round, phase, base), self.buffer.early.get(device)
        return self._takes_late(event) and (waiting is None or waiting.round != round)

    @property
    def _last_training(self) -> int:
        early = self.ended_early.round if self.ended_early else None
        return min(end for end in (self.rounds, self._stopped_after, early) if end is not None)

    @property
    def _last_round(self) -> int:
        return self._last_training + self.evaluate

    @property
    def _evaluation_is_due(self) -> bool:
        """Return whether all present devices must evaluate before this round.

        This is needed only if some present devices are not in the cohort. Without this evaluation, these devices
        would not measure the result of the earlier rounds. A buffered round does not wait for such an evaluation,
        because slow devices are still at work.
        """
        every = self.policy.evaluate_every
        if self.buffer.is_on:
            return False
        return every > 0 and self.round > 1 and (self.round - 1) % every == 0 and self.leaves_out

    def _first_step(self) -> Advance:
        """Begin the round; if an evaluation is due, all present devices evaluate first."""
        if self.is_last_evaluation:
            return Advance(self.round, None, (), evaluate=True)
        if self._evaluation_is_due:
            self._drawn, self.cohort = self.cohort, self._present
            return Advance(self.round, None, (), evaluate=True)
        return Advance(self.round, None, (), attempt=self.attempt)

    def _next_step(self, phase: str, devices: tuple[str, ...]) -> Advance:
        """Go on with the updates of a phase.

        If the phase was an evaluation before the round, begin the round with the cohort that was chosen before.
        """
        if self._drawn is None:
            return Advance(self.round, phase, devices)
        self.cohort, self._drawn = self._drawn, None
        return Advance(self.round, None, (), attempt=self.attempt)

    @property
    def _quorum(self) -> int:
        """Return the number of updates that the open task needs.

        Each update that was put aside in this round lowers the number by one, because the device of that
        update takes no further part in the round. If the server half keeps answers, a later round needs no
        update. It then ends without one, and devices that cannot answer do not make it begin again without end.
        """
        if self.evaluating or self.kept:
            return 0
        if self._short:
            return self._least
        return max(1, self._least, self.policy.quorum - len(self._aside.get(self.round, ())))

    @property
    def _quorum_is_unreachable(self) -> bool:
        """Return whether so many updates were refused that the quorum cannot be reached any more."""
        return len(self._answered) + len(self._missing) < self._quorum

    @property
    def _has_first_answers(self) -> bool:
        """Return whether enough updates have arrived, with spares or in a buffered round. Then the phase closes."""
        p = self.policy
        if p.buffered:
            return not self.evaluating and len(self._answered) >= p.buffer
        return p.spares > 0 and not self.evaluating and len(self._answered) >= p.cohort

    def not_counted_on(self, now: float) -> AbstractSet[str]:
        """Return the devices that are present but that the run does not wait for.

        These are the devices that are unsteady or silent, and the devices whose update was refused in this
        round.
        """
        return self.roster - (self._reliable(now) - self.silent.devices)

    def _reliable(self, now: float) -> set[str]:
        """Return the present devices that are steady and whose updates were not refused in this round."""
        return self.roster - self.flaps.flapping(now) - self.verdicts.suspects

    def _join(self, event: Joined, now: float) -> Iterable[Command]:
        """Add a device to the roster, without sending a task to the device."""
        self.roster.add(event.device)
        self.buffer.joined(event.device)
        if self.sums.joined(event.device):
            self.silent.forgive(event.device)
        self._unenrolled.discard(event.device)
        self._deselected.discard(event.device)
        if event.anew:  # The next round deletes the kept answer as it begins, and asks the device again.
            self.kept, self._left = self.kept - {event.device}, self._left | {event.device}
        if event.device in self._reliable(now) and event.device not in self.silent.devices:
            self._absent.pop(event.device, None)
        return ()

    def _join_and_maybe_start(self, event: Joined, now: float) -> Iterator[Command]:
        yield from self._join(event, now)
        yield from self._maybe_start(now)

    def _join_and_be_asked(self, event: Joined, now: float) -> Iterator[Command]:
        yield from self._join(event, now)
        if event.device in self._missing:
            yield self._send(event.device, self._seconds_left(now), now)

    def _join_and_be_dismissed(self, event: Joined, now: float) -> Iterator[Command]:
        yield from self._join(event, now)
        yield Dismiss(event.device)

    def _leave(self, event: Left, now: float) -> Iterable[Command]:
        # The broker may publish the MQTT will of a device more than once. Count one disconnection only.
        if event.device in self.roster:
            self.flaps.disconnected(event.device, now)
        self.sums.left(event.device)
        self.roster.discard(event.device)
        self._deselected.discard(event.device)
        if event.device in self.cohort:
            self._absent.setdefault(event.device, now if event.since is None else event.since)
        return ()

    def _leave_and_maybe_wait_again(self, event: Left, now: float) -> Iterator[Command]:
        yield from self._leave(event, now)
        if len(self._funded) < self.least:
            self.selection.settled = None

    def _leave_and_maybe_close(self, event: Left, now: float) -> Iterator[Command]:
        yield from self._leave(event, now)
        yield from self._maybe_close(now)

    def _unenroll(self, event: Unenrolled, now: float) -> Iterable[Command]:
        """Remove a device from the roster.

        The saved cohort does not change, so that a replay has the same cohort as this process.
        """
        self.roster.discard(event.device)
        self._missing.discard(event.device)
        self._unenrolled.add(event.device)
        self._left -= {event.device}
        return ()

    def _deselect(self, event: Deselected, now: float) -> Iterable[Command]:
        self._deselected |= {event.device} & self.roster
        return ()

    def _deselect_and_maybe_wait_again(self, event: Deselected, now: float) -> Iterator[Command]:
        yield from self._deselect(event, now)
        if len(self._funded) < self.least:
            self.selection.settled = None

    def _unenroll_and_maybe_wait_again(self, event: Unenrolled, now: float) -> Iterator[Command]:
        yield from self._unenroll(event, now)
        if len(self._funded) < self.least:
            self.selection.settled = None
        if self._wait_for_new is not None and not self._left and not self._funded:
            yield from self._end_training(now, ALL_HAVE_ANSWERED, NOBODY_LEFT)

    def _unenroll_and_maybe_close(self, event: Unenrolled, now: float) -> Iterator[Command]:
        yield from self._unenroll(event, now)
        yield from self._maybe_close(now)

    def _start_when_settled(self, event: Woke, now: float) -> Iterable[Command]:
        return self._maybe_start(now)

    def _close_when_due(self, event: Woke, now: float) -> Iterable[Command]:
        return self._maybe_close(now)

    def _ignore(self, event: Woke | Extended | Paused | Stopped, now: float) -> Iterable[Command]:
        return ()

    def _note_pause(self, event: Paused, now: float) -> Iterable[Command]:
        self.paused = event.words
        return [SavePause(event.words)]

    def _note_pause_and_maybe_start(self, event: Paused, now: float) -> Iterator[Command]:
        yield from self._note_pause(event, now)
        self.next_round_at, self._look_at, self.selection.settled = 0.0, None, None
        self._wait_for_new = now + self.policy.patience_seconds if self.kept else None
        yield from self._maybe_start(now)

    def _note_rounds(self, event: Extended, now: float) -> Iterable[Command]:
        self.rounds = event.rounds
        return [SaveRounds(event.rounds)]

    def _note_rounds_and_maybe_start(self, event: Extended, now: float) -> Iterator[Command]:
        yield from self._note_rounds(event, now)
        if self.is_last_evaluation and not self.paused:  # A replay of the last round would do so too.
            yield from self._begin_last_evaluation(now)
        else:
            yield from self._maybe_start(now)

    def _note_stop(self, event: Stopped, now: float) -> Iterable[Command]:
        """End the run as soon as the worker has finished its step; from now on, the end is durable."""
        self.ended_early = EndEarly(min(self.round - 1, self._last_training), event.words, OPERATOR)
        return [self.ended_early]

    def _stop_and_save(self, event: Stopped, now: float) -> Iterator[Command]:
        """End the run between two rounds, and save the model of the last round."""
        yield from self._note_stop(event, now)
        yield Save(self.round, self.attempt, ())
        yield from self._finish()

    def _stop(self, event: Stopped, now: float) -> Iterator[Command]:
        yield from self._note_stop(event, now)
        yield from self._finish()

    def _advance(self, event: Advanced, now: float) -> Iterable[Command]:
        self.kept, self._left, self.sums.last = event.kept, event.left, event.sums
        if self.is_stopped:
            return self._end_stopped(event)
        if event.ended:
            return self._begin_again(event.ended, (), now, limited=True)
        if event.phase is not None:
            self._least, self._short, self._final = event.least, event.seconds > 0, event.final
            return self._open(event.phase, event.base, now, event.seconds or self.policy.patience_seconds)
        if event.fault:
            return self._blame(self._suspected_round, event.fault, server_half=True)
        return self._end_round(now, event.validation, nobody_left=bool(event.kept) and not event.left)

    def _end_stopped(self, event: Advanced) -> Iterator[Command]:
        """End a run that an operator has stopped while the server half computed.

        If the server half has ended the round, save its result.
        """
        assert self.ended_early is not None
        if event.phase is None and not event.fault:
            if self.round <= self.rounds:
                self.ended_early = replace(self.ended_early, round=self.round)
                yield self.ended_early
            self.round, self.attempt = self.round + 1, 0
            yield Save(self.round, 0, ())
        yield from self._finish()

    def _maybe_start(self, now: float) -> Iterator[Command]:
        if self.stage is not Stage.GATHERING or self.paused:
            return
        if self.kept and not self._left and not self._funded and not self.is_last_evaluation:
            yield from self._end_training(now, ALL_HAVE_ANSWERED, NOBODY_LEFT)
            return
        if self._is_exhausted:
            yield from self._end_training(now, *self._budgets_spent())
            return
        here = self._funded
        if (
            self._wait_for_new is not None
            and now >= self._wait_for_new
            and not (here or self._waits_for_month)
        ):
            yield from self._end_training(now, *self._nobody_came())
            return
        if self._is_held_back(now) or len(here) < self.least or self._waits_for_sum(now):
            return
        first = (self.round, self.attempt) == (1, 0)
        steady = len(self._reliable(now) & here)
        if self.selection.is_complete(len(here), steady, self.least, first, now):
            yield from self._start(now)

    @property
    def _funded(self) -> set[str]:
        """Return the present devices that may get the next task.

        The run selects them, their budget holds the task, and the task asks them.
        """
        here = self.roster - self._unaffordable - self._deselected
        return here if self.is_last_evaluation else here - self.kept

    @property
    def _unaffordable(self) -> frozenset[str]:
        """Return the devices whose budget does not hold the next task that asks them."""
        return self.budget.no_evaluation if self.is_last_evaluation else self.budget.no_round - self.kept

    @property
    def _waits_for_month(self) -> bool:
        """Return whether a present device has not answered because its budget of the month is spent."""
        return bool(self.roster & self.budget.until_month - self.kept)

    @property
    def least(self) -> int:
        """Return the number of devices with which the next round can begin.

        If the server half keeps answers, a later round asks only the devices that have not answered yet. One such
        device is enough.
        """
        return 1 if self.kept and not self.is_last_evaluation else self.policy.quorum

    @property
    def _is_exhausted(self) -> bool:
        """Return whether the training ends, because the budget of the run or of too many devices is spent."""
        b = self.budget
        too_few = b.able < self.least <= b.able + b.spent
        return (bool(b.over) or too_few) and not self.is_last_evaluation

    def _note_budget(self, event: Budgeted, now: float) -> Iterable[Command]:
        self.budget = event
        return ()

    def _note_budget_and_maybe_start(self, event: Budgeted, now: float) -> Iterator[Command]:
        yield from self._note_budget(event, now)
        if len(self._funded) < self.least:
            self.selection.settled = None
        yield from self._maybe_start(now)

    def _budgets_spent(self) -> tuple[str, str]:
        b = self.budget
        words = b.over or (
            f"the budget of {b.spent} of {b.spent + b.able} devices does not hold one more round ({b.words}), and "
            f"policy.quorum is {self.policy.quorum}"
        )
        return words, BUDGET

    def _nobody_came(self) -> tuple[str, str]:
        seconds = f"policy.patience_seconds ({self.policy.patience_seconds:g} s)"
        names = first_names(sorted(self._left), MOST_NAMED)
        return f"no device that had not answered was there for {seconds}: {names}", NOBODY_LEFT

    def _end_training(self, now: float, words: str, by: str) -> Iterator[Command]:
        """End the training with the round before the current round, then let the devices measure."""
        self.ended_early = EndEarly(self.round - 1, words, by)
        yield self.ended_early
        yield from self._begin_last_evaluation(now)

    def _begin_last_evaluation(self, now: float) -> Iterator[Command]:
        self.next_round_at, self._look_at, self._wait_for_new = 0.0, None, None
        if self.evaluate:
            yield from self._start(now)
        else:
            yield Save(self.round, self.attempt, ())
            yield from self._finish()

    def _is_held_back(self, now: float) -> bool:
        """Return whether the policy delays the next round.

        The policy delays only new rounds of training. It does not delay the repetition of a round or the last
        evaluation.
        """
        left = 0.0 if self.attempt or self.is_last_evaluation else self.pace.seconds_left(now)
        self.next_round_at = self.pace.wall + left if left else 0.0
        self._look_at = now + min(left, LOOK_SECONDS) if left else None
        if left:
            self.selection.settled = None
        return left > 0

    def _waits_for_sum(self, now: float) -> bool:
        """Return whether the next round waits for devices without which its sum may not follow the last sum."""
        if self.is_last_evaluation:
            return False
        return self.sums.holds_back(self.here_for_sum, now, self.policy.patience_seconds)

    def _start(self, now: float) -> Iterator[Command]:
        aside, here = self._aside.get(self.round, ()), self._funded
        steady = (self._reliable(now) - self.silent.devices).intersection(here).difference(aside)
        others = (here - steady).difference(aside)
        everybody = self.is_last_evaluation
        seated = frozenset[str]() if everybody else self._seated(here, now)
        drawn = self.selection.draw(
            steady - seated, others - seated, self.round, self.attempt, everybody, len(seated)
        )
        more = self._asked_in_addition(others.difference(drawn, seated))
        cohort = {*drawn, *seated, *more}
        self.cohort = tuple(sorted(cohort if everybody else self.sums.chosen(cohort, here)))
        self.unfunded = self._unaffordable & self.roster
        self._present, self._drawn = tuple(sorted(self.roster - self.unfunded)), None
        self.stage, self.selection.settled, self._earlier = Stage.COMPUTING, None, None
        self._wait_for_new = None
        self._absent = {device: now for device in self.cohort if device not in steady}
        yield Save(self.round, self.attempt, self.cohort)
        yield self._first_step()

    def _seated(self, here: AbstractSet[str], now: float) -> frozenset[str]:
        """Return the present devices that keep their seats, because they work on the task of an earlier round."""
        for device, task in self.buffer.give_up(self.round, now).items():
            self.silent.gave_no_answer([device], (task.round, task.phase, task.base))
        return frozenset(self.at_work & here)

    def _asked_in_addition(self, others: AbstractSet[str]) -> tuple[str, ...]:
        """Return the silent device that gets the task in addition to the cohort; () if there is no such device.

        The silent devices take turns. Otherwise a silent device might never receive a task again and would stay
        silent.
        """
        return () if self.is_last_evaluation else self.silent.in_turn(others)

    def _open(self, phase: str, base: bytes, now: float, seconds: float) -> Iterator[Command]:
        self.asked, self.base = phase, base
        known, self.verdicts.refused = self.verdicts.known(phase, base), {}
        closed = self._closed.get(phase)
        # A phase that needs no update may have been closed without any update.
        if closed or (closed is not None and (self._final or not self._quorum)):
            self.cohort = closed
            if known.issuperset(closed):
                yield self._next_step(phase, closed)
                return
            # An accepted update was lost on a damaged disk. Its device still has the update and must send it
            # again. So no other device is asked.
        self._answered = known.intersection(self.cohort)
        self._missing = set(self.cohort) - self._answered - self._unenrolled
        self.stage = Stage.COLLECTING
        self._deadline = now + seconds
        self._start_timing(now, bool(closed))
        self._wait_for_no_silent_device(now)
        if self.buffer.is_on:
            yield from self._open_buffered(now)
        if not self._has_first_answers or not self.buffer.is_on:
            for device in sorted(self._missing if self.evaluating else self._missing - self.at_work):
                yield self._send(device, seconds, now)
        yield from self._maybe_close(now)

    def _send(self, device: str, seconds: float, now: float) -> Send:
        if self.buffer.is_on and not self.evaluating:
            self.buffer.sent(device, self.round, now)
        return Send(device, self.round, self.asked, seconds)

    def _open_buffered(self, now: float) -> Iterator[Command]:
        """Store the task of a buffered round, then count the late updates that have waited for this round."""
        if not self.evaluating:
            task = SentTask(self.round, self.asked, self.base, self.cohort)
            yield Open(task, self.buffer.opened(task))
        for event in self.buffer.take_early():
            yield from self._judge(event, now)

    def _start_timing(self, now: float, closed: bool) -> None:
        question = self.round, self.asked, self.base
        if closed:  # the devices of the first phase must answer, so there is no deadline
            self.straggler_deadline.asked(question, (), (), now)
            return
        earlier, self._earlier = self._earlier, None
        # After a restart, all devices need time to connect again.
        back = 0.0 if earlier is None else self.policy.grace_seconds
        self.straggler_deadline.asked(question, self.cohort, self._answered, now, earlier, back)
        if self.evaluating and self.cohort:
            self.straggler_deadline.asked_at_the_end()

    def _wait_for_no_silent_device(self, now: float) -> None:
        """Treat silent devices like devices that left long ago, so that the run does not wait for them."""
        silent = self._missing & self.silent.devices
        self._absent |= dict.fromkeys(silent, now - self.policy.grace_seconds)
        self.silent.asked(silent, (self.round, self.asked, self.base))

    def _note_answer(self, event: Answered) -> None:
        device = event.device
        if self.silent.answered(device, (event.round, event.phase, event.base)):
            self._absent.pop(device, None)

    def _answer_late(self, event: Answered, now: float) -> Iterable[Command]:
        self._note_answer(event)
        place = event.device, event.round, event.phase
        if self._was_accepted(event):
            return [Repeat(*place)]
        if self._takes_late(event):
            return [*self._take_late(event, now)]
        return [Drop(*place, "late", Problem(Reason.LATE, f"round {self.round} is in hand"))]

    def _answer(self, event: Answered, now: float) -> Iterator[Command]:
        yield from self._judge(event, now)
        yield from self._maybe_blame()
        yield from self._maybe_close(now)

    def _judge(self, event: Answered, now: float) -> Iterator[Command]:
        self._note_answer(event)
        device, place = event.device, (event.device, event.round, event.phase)
        self.buffer.answered(device, event.round)
        if (
            self._takes_late(event)
            or self._was_accepted(event)
            or device in self.verdicts.late
            or (event.round, event.phase) != (self.round, self.asked)
        ):
            yield from self._answer_late(event, now)
        elif not self.was_asked(device):
            yield Drop(*place, "refused", Problem(Reason.NOT_INVITED, "not in this round's cohort"))
        elif event.base != self.base:
            yield Drop(*place, "late", Problem(Reason.LATE, "computed from another broadcast"))
        elif said := self.verdicts.refused.get(device):
            yield Repeat(*place, said)
        elif event.problem:
            self.verdicts.refuse(device, event.problem)
            self._missing.discard(device)
            yield Drop(*place, "refused", event.problem)
        else:
            self._answered.add(device)
            self._missing.discard(device)
            self.verdicts.accept(event.phase, device, event.base)
            self.straggler_deadline.answered(device, now)
            yield Accept(*place)

    def _takes_late(self, event: Answered) -> bool:
        """Return whether an update that is not for the open task can count in a buffered round."""
        if not self.buffer.is_on or self.stage is Stage.FINISHED or event.device in self._unenrolled:
            return False
        is_open = (event.round, event.phase, event.base) == (self.round, self.asked, self.base)
        if is_open and self.stage is Stage.COLLECTING and event.device not in self._answered:
            return False
        earliest = max(self.round, event.round + 1)
        is_new = self.verdicts.newest_task(event.device, self.round) < event.round
        return earliest <= self._last_training and is_new and self.buffer.knows(event)

    def _take_late(self, event: Answered, now: float) -> Iterator[Command]:
        """Count a late update in the open round and send the open task, or keep the update for the next round."""
        device, place = event.device, (event.device, event.round, event.phase)
        self.buffer.answered(device, event.round)
        is_open = self.stage is Stage.COLLECTING and not self.evaluating and event.round < self.round
        if event.problem:
            self._missing.discard(device)
            yield Drop(*place, "refused", event.problem)
        elif (
            is_open and device in self.cohort and device not in self._answered and not self._has_first_answers
        ):
            self._answered.add(device)
            self._missing.discard(device)
            staleness = self.round - event.round
            self.verdicts.accept(event.phase, device, event.base, staleness)
            yield Accept(*place, staleness)
            if not self._has_first_answers and self.round < self._last_training:
                yield self._send(device, self._seconds_left(now), now)
        else:
            self.buffer.early[device] = event

    def _was_accepted(self, event: Answered) -> bool:
        place = event.device, event.phase, event.base
        if self.verdicts.has_accepted(*place, self.round - event.round):
            return True
        if event.round == self.round:
            return False
        return self.verdicts.was_accepted(event.device, event.round, event.phase, event.base)

    def _maybe_close(self, now: float) -> Iterator[Command]:
        if self.stage is not Stage.COLLECTING or self._deadline is None:
            return
        wake_at = self.wake_at
        over = wake_at is not None and now >= wake_at
        if self._missing and not over and not self._has_first_answers:
            return
        if now >= self._deadline:
            silent = self._missing - self._absent.keys() - self.at_work
            self.silent.gave_no_answer(silent, (self.round, self.asked, self.base))
        if len(self._answered) < self._quorum and not self._final:
            yield from self._repeat_round(now)
            return
        self.cohort = tuple(sorted(self._answered))  # only these devices are asked in later phases
        self.stage, self._deadline = Stage.COMPUTING, None
        self._closed[self.asked] = self.cohort
        yield Close(self.round, self.asked, self.cohort)
        yield self._next_step(self.asked, self.cohort)

    def _maybe_blame(self) -> Iterator[Command]:
        """Search for the cause if more than half of the cohort sent broken updates.

        If only a few updates are broken, the cause is at their devices, so there is no search.
        """
        # The devices whose answers are kept were asked the same.
        many = 2 * len(self.verdicts.broken) > len(self.cohort) + len(self.kept)
        number = self._suspected_round
        if not many or self.stage is not Stage.COLLECTING or self.evaluating:
            return
        if self.trials.are_under_way(number):
            yield from self._fail_by_broken_answers()
        else:
            yield from self._blame(number, self._who_has_diverged())

    @property
    def _suspected_round(self) -> int:
        """Return the round whose updates led to the broadcast of the open task.

        This is the current round if one of its phases is closed. Otherwise it is the previous round.
        """
        return self.round - (not self._closed.keys() - {EVALUATE})

    def _blame(self, number: int, why: str, server_half: bool = False) -> Iterator[Command]:
        if number < 1:
            yield from self._diverge(f"{why}, and no round was before it")
        elif not self.individuals:
            yield from self._diverge(f"{why}, and no single update can be left out of a masked sum")
        elif number in self._aside and not server_half:
            yield from self._diverge(f"{why}, and {self._repeated(number)}")
        else:
            self.stage, self._deadline = Stage.BLAMING, None
            yield Blame(number, why, server_half, dict(self._aside))

    def _go_back(self, blamed: Blamed, now: float) -> Iterator[Command]:
        """Go back to the round whose updates are blamed, and repeat the round without these updates; or end the run.

        A round is repeated only once, with two exceptions. It is repeated again if a test has shown that the
        server half can go on without the blamed updates. It is also repeated for each trial that leaves out
        one update.
        """
        if self.is_stopped:
            yield from self._finish()
            return
        past, phase = blamed.past, blamed.phase
        if past.round in self._aside and not (blamed.tried or blamed.trial):
            yield from self._diverge(f"{blamed.words}, and {self._repeated(past.round)}")
            return
        if not blamed.devices:
            yield from self._diverge(blamed.words)
            return
        returned = self._return_the_last(past.round) if blamed.trial else ()
        known = past.accepted.get(phase, {}).keys() & set(past.cohort)
        counted = {*past.closed[phase], *known.intersection(returned)}
        left = tuple(sorted(counted.difference(blamed.devices)))
        self._aside[past.round] = (*self._aside.get(past.round, ()), *blamed.devices)
        if blamed.trial:
            self.trials.leave_out(past.round, blamed.devices)
        yield PutAside(past.round, phase, left, blamed.devices, blamed.words, blamed.trial, returned)
        self.trials.begin_round()
        self.buffer.restore(self.buffer.tasks.values(), past.round)
        self._later_rounds = []  # The later rounds used the old result of this round.
        if (end := self.ended_early) is not None and end.by == NOBODY_LEFT and end.round >= past.round:
            self.ended_early = None  # A device whose update is put aside may answer again.
        closed = {**past.closed, phase: left}
        until = list(closed).index(phase) + 1
        self._restore_round(replace(past, closed={name: closed[name] for name in list(closed)[:until]}))
        self._earlier, self.stage = None, Stage.COMPUTING
        yield self._first_step()

    def _return_the_last(self, number: int) -> tuple[str, ...]:
        """Allow the updates of the last trial again, and return the devices of these updates.

        The last trial left these updates out, but this did not help.
        """
        returned = self.trials.left_out(number, self._aside.get(number, ()))
        self._aside[number] = tuple(d for d in self._aside.get(number, ()) if d not in returned)
        return returned

    def _repeated(self, number: int) -> str:
        return f"round {number} was repeated without {', '.join(self._aside[number])}"

    def _diverge(self, words: str) -> Iterator[Command]:
        self.stage, self._deadline = Stage.FINISHED, None
        yield Diverge(self.round, words)
        yield from (Dismiss(device) for device in sorted(self.roster))

    def _repeat_round(self, now: float) -> Iterator[Command]:
        """Repeat the round from its beginning, because too few updates were accepted.

        If the quorum is missed only because of broken updates, search for the cause or end the run instead.
        """
        if (
            self.individuals
            and self.verdicts.broken
            and len(self._answered) + len(self.verdicts.broken) >= self._quorum
        ):
            yield from self._fail_by_broken_answers()
            if self.stage is not Stage.COLLECTING:
                return
        words = f"{len(self._answered)} of {len(self.cohort)} answers are in, policy.quorum is {self._quorum}"
        if self._short:
            answers = f"{len(self._answered)} of {len(self.cohort)} answers to {self.asked} are in"
            words = f"{answers}, and the sum needs {self._least}"
        why, missing = words + self.verdicts.words_of_the_refused(), tuple(sorted(self._missing))
        yield from self._begin_again(why, missing, now, limited=self._short)

    def _begin_again(
        self, why: str, missing: tuple[str, ...], now: float, limited: bool
    ) -> Iterator[Command]:
        """Begin the round again. If the attempts are `limited`, end the run after many of them.

        An experiment may allow one attempt only, because broken updates stay broken. A masked sum fails if a few
        devices are away for a moment, so it has as many attempts as there are devices, and one more.
        """
        most = self.policy.attempts_of(len(self._present))
        most = max(most, 1 + len(self._present)) if most else 0
        if limited and 0 < most <= self.attempt + 1:
            yield from self._diverge(
                f"{why}; this was attempt {self.attempt + 1} of {most}; start the run again when the devices are "
                "back, or set policy.attempts = 0"
            )
            return
        self.attempt += 1
        self.stage, self._deadline, self._closed = Stage.GATHERING, None, {}
        yield Rollback(why, missing)
        yield from self._maybe_start(now)

    def _fail_by_broken_answers(self) -> Iterator[Command]:
        """Handle a round that misses its quorum only because of broken updates.

        After some failures, repeat the previous server step without one of its updates. After too many
        failures, end the run.
        """
        self.trials.failures += 1
        number, most = self._suspected_round, self.policy.attempts_of(len(self.cohort))
        why = f"{self._who_has_diverged()}, and policy.quorum is {self._quorum}"
        if 0 < most <= self.trials.attempts(number):
            yield from self._diverge(why)
        elif self.trials.are_due(number):
            self.stage, self._deadline = Stage.BLAMING, None
            tried, endless = self.trials.tried.get(number, ()), self.policy.attempts == 0
            yield Blame(number, why, False, dict(self._aside), True, tried, endless)

    def _who_has_diverged(self) -> str:
        broken, where = self.verdicts.broken, f"round {self.round} {self.asked}"
        found = "; ".join(filter(None, (next(iter(broken.values())).message, self.way_out)))
        return f"{len(broken)} of {len(self.cohort)} devices have diverged in {where} ({found})"

    def _judge_by_validation(self, accuracy: float | None) -> Iterator[Command]:
        if accuracy is None or self.policy.stop is None or self.is_last_evaluation:
            return
        self.stopped = self.stop_rule.note(self.round, accuracy)
        if self.stopped:
            self._stopped_after = self.round
        yield Judge(self.round, accuracy, self.stopped, self.stop_rule.oldest)

    def _end_round(self, now: float, accuracy: float | None, nobody_left: bool) -> Iterator[Command]:
        yield from self._judge_by_validation(accuracy)
        self.verdicts.end_round(self.round)
        self.trials.begin_round()
        if self.round < self._last_training and (ended := self.pace.round_ended(self.round, now)) is not None:
            yield Pause(self.round, ended)
        self.round, self.attempt = self.round + 1, 0
        self._closed, self._answered = {}, set()
        if self._later_rounds:
            self._restore_round(self._later_rounds.pop(0))
            yield Save(self.round, self.attempt, self.cohort)
            if self.round > self._last_round:
                yield from self._finish()
            else:
                self.stage = Stage.COMPUTING
                yield self._first_step()
        elif self.round > self._last_round:
            yield Save(self.round, 0, ())
            yield from self._finish()
        elif self.paused:
            self.stage = Stage.GATHERING
        elif nobody_left and not self.is_last_evaluation:
            yield from self._end_training(now, ALL_HAVE_ANSWERED, NOBODY_LEFT)
        elif self._is_exhausted:
            yield from self._end_training(now, *self._budgets_spent())
        elif self.is_last_evaluation or (
            not self._is_held_back(now)
            and len(self._reliable(now) & self._funded) >= self.least
            and not self._waits_for_sum(now)
        ):
            yield from self._start(now)
        else:
            self.stage = Stage.GATHERING
            self._wait_for_new = now + self.policy.patience_seconds if self.kept else None
            yield from self._maybe_start(now)

    def _finish(self) -> Iterator[Command]:
        self.stage, self._deadline = Stage.FINISHED, None
        yield Finish(self._last_training)
        yield from (Dismiss(device) for device in sorted(self.roster))

    def _seconds_left(self, now: float) -> float:
        return max(0.0, (self._deadline or now) - now)

    # A wake-up may arrive late, so each stage has a handler for it. If any other event has no handler, the
    # error is in this program and not in a device.
    HANDLERS: ClassVar[Mapping[Stage, Mapping[type[Event], Handler]]] = {
        Stage.GATHERING: {
            Budgeted: _note_budget_and_maybe_start,
            Extended: _note_rounds_and_maybe_start,
            Paused: _note_pause_and_maybe_start,
            Stopped: _stop_and_save,
            Joined: _join_and_maybe_start,
            Left: _leave_and_maybe_wait_again,
            Unenrolled: _unenroll_and_maybe_wait_again,
            Deselected: _deselect_and_maybe_wait_again,
            Answered: _answer_late,
            Woke: _start_when_settled,
        },
        Stage.COMPUTING: {
            Budgeted: _note_budget,
            Extended: _note_rounds,
            Paused: _note_pause,
            Stopped: _note_stop,
            Joined: _join,
            Left: _leave,
            Unenrolled: _unenroll,
            Deselected: _deselect,
            Answered: _answer_late,
            Advanced: _advance,
            Woke: _ignore,
        },
        Stage.BLAMING: {
            Budgeted: _note_budget,
            Extended: _note_rounds,
            Paused: _note_pause,
            Stopped: _note_stop,
            Joined: _join,
            Left: _leave,
            Unenrolled: _unenroll,
            Deselected: _deselect,
            Answered: _answer_late,
            Blamed: _go_back,
            Woke: _ignore,
        },
        Stage.COLLECTING: {
            Budgeted: _note_budget,
            Extended: _note_rounds,
            Paused: _note_pause,
            Stopped: _stop,
            Joined: _join_and_be_asked,
            Left: _leave_and_maybe_close,
            Unenrolled: _unenroll_and_maybe_close,
            Deselected: _deselect,
            Answered: _answer,
            Woke: _close_when_due,
        },
        Stage.FINISHED: {
            Budgeted: _note_budget,
            Extended: _ignore,
            Paused: _ignore,
            Stopped: _ignore,
            Joined: _join_and_be_dismissed,
            Left: _leave,
            Unenrolled: _unenroll,
            Deselected: _deselect,
            Answered: _answer_late,
            Woke: _ignore,
        },
    }
