"""Carry out the commands of operators on a run: show, pause, resume, extend and stop.

Each command has an id. The result of a command is sent only after its effect and the result are on the disk. So a
command that is sent again, for example after a crash, has no second effect and gets the same result.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from protofleet.coordinator.command_queue import CommandQueue
from protofleet.coordinator.observe.view import RunView
from protofleet.coordinator.queue.commands import (
    CONFLICT,
    DENIED,
    DONE,
    MOST_LOGGED,
    MOST_WORDS,
    REFUSED,
    SHOWN,
    Sender,
    conflict_words,
    operator_words,
    rounds_are_fixed,
    show_command,
    shown_commands,
    training_is_over,
)
from protofleet.coordinator.queue.states import FINAL, WAITING
from protofleet.coordinator.request_form import MOST_SHOWN, denial_of
from protofleet.coordinator.round.events import Event, Extended, Paused, SaveResult, Stage, Stopped
from protofleet.coordinator.round.machine import RoundMachine
from protofleet.coordinator.spool.spool import Spool
from protofleet.protocol.security.operators import SHOWS
from protofleet.protocol.wire.printable import printable

log = logging.getLogger("protofleet.coordinator")

VERBS: Final = ("show", "pause", "resume", "extend", "stop")
# Commands that only a coordinator with a queue carries out.
OF_A_QUEUE: Final = frozenset({"submit", "label", "labels"})


@dataclass(frozen=True, slots=True)
class OperatorCommand:
    id: bytes
    operator: str
    verb: str
    reason: str = ""
    rounds: int = 0  # Number of rounds of `extend`.
    # Revision of the run that the operator has looked at, if the command names it.
    revision: int | None = None
    sender: Sender | None = None  # None for a command that was given on this machine.

    @property
    def key(self) -> bytes:
        """Return the id under which the command is stored. An operator cannot use the id of another operator."""
        return self.id if self.sender is None else self.id + self.operator.encode()

    def words(self) -> str:
        """Return the operator and the reason."""
        return operator_words(self.operator, self.reason)


@dataclass(frozen=True, slots=True)
class OperatorResult:
    verdict: str
    words: str
    data: Mapping[str, Any] = field(default_factory=dict)


class OperatorCommands:
    def __init__(
        self, machine: RoundMachine, spool: Spool, queue: CommandQueue, view: RunView,
        happen: Callable[[Event], None], wall: Callable[[], float], fixed_rounds: str = "",
    ) -> None:  # fmt: skip
        """Set up the commands of a run; `fixed_rounds` is the reason why its method allows no `extend`, or ""."""
        self._machine, self._spool, self._queue, self._view = machine, spool, queue, view
        self._happen, self._wall, self._fixed_rounds = happen, wall, fixed_rounds
        # Calls that send the results of this turn.
        self._replies: list[Callable[[], None]] = []
        # Number of the newest command, and of the newest that was done. The second one is the revision of the run.
        self._number, self._revision = spool.newest_numbers(DONE)

    def execute(self, command: OperatorCommand, reply: Callable[[OperatorResult], None], now: float) -> None:
        """Carry out a command, and call `reply` with the result when the effect is on the disk."""
        denial = denial_of(command)
        if command.verb in SHOWS:
            reply(OperatorResult(DENIED, denial) if denial else self._view_of(command.verb))
            return
        known = self._spool.result_of(command.key)
        if known is not None:
            reply(OperatorResult(known.verdict, known.words))
            return
        event, result = (None, OperatorResult(DENIED, denial)) if denial else self._decide(command)
        if event is not None:
            self._happen(event)
        self._number += 1
        if result.verdict == DONE:
            self._revision = self._number
        self._queue.add([self._stored(command, result)], now)
        self._replies.append(lambda: reply(result))

    def _stored(self, command: OperatorCommand, result: OperatorResult) -> SaveResult:
        sender = command.sender
        heard = (sender.boot, sender.newest, sender.holder) if sender else None
        verb, words = printable(command.verb)[:MOST_SHOWN], result.words[:MOST_WORDS]
        log.info("%s: %s: %s", command.operator, verb, words)
        return SaveResult(
            command.key, int(self._wall()), command.operator, verb, result.verdict, words, heard
        )

    def end_turn(self) -> None:
        """Send the results whose effects are on the disk now."""
        if self._replies and not len(self._queue) and not self._spool.has_uncommitted:
            replies, self._replies = self._replies, []
            for send in replies:
                send()

    def _decide(self, command: OperatorCommand) -> tuple[Event | None, OperatorResult]:
        m, words = self._machine, command.words()
        if m.stage is Stage.FINISHED or m.is_stopped:
            return None, self._over(command.verb)
        if command.revision is not None and command.revision != self._revision:
            state, _ = state_of(m, self._view)
            look = show_command(self._spool.folder.parent, command.sender)
            said = conflict_words(self._view.name, self._revision, command.revision, state, look)
            return None, OperatorResult(CONFLICT, said)
        match command.verb:
            case "stop":
                return Stopped(f"stopped by {words}"), OperatorResult(DONE, "the run is stopped")
            case "pause" if m.paused:
                return None, OperatorResult(DONE, f"the run is paused already: {m.paused}")
            case "pause":
                when = "" if m.stage is Stage.GATHERING else f" at the end of round {m.round}"
                return Paused(f"paused by {words}"), OperatorResult(DONE, f"the run pauses{when}")
            case "resume" if not m.paused:
                return None, OperatorResult(DONE, "the run is not paused")
            case "resume":
                return Paused(""), OperatorResult(DONE, "the run goes on")
            case "extend":
                return self.extended(command.rounds)
        return None, self._not_taken(command.verb)

    def _not_taken(self, verb: str) -> OperatorResult:
        said = printable(verb)[:MOST_SHOWN]
        if verb in OF_A_QUEUE:
            words = f"{said} needs a coordinator with a queue, and this one conducts only {self._view.name}"
        else:
            words = f"there is no command {said!r}; there are {', '.join((*VERBS, 'runs', 'log', 'follow'))}"
        return OperatorResult(REFUSED, words)

    def _view_of(self, verb: str) -> OperatorResult:
        match verb:
            case "show":
                return OperatorResult(DONE, "", self.shown())
            case "follow":
                return OperatorResult(DONE, "", {**self.shown(), "commands": []})
            case "runs":
                state = self.shown()
                keys = ("run", "state", "reason", "rounds", "revision", "over", "origin")
                return OperatorResult(DONE, "", {"runs": [{key: state[key] for key in keys}]})
            case "log":
                rows = [
                    {"run": "" if one["verb"] in OF_A_QUEUE else self._view.name, **one}
                    for one in shown_commands(self._spool.newest_results(MOST_LOGGED)[::-1])
                ]
                return OperatorResult(DONE, "", {"commands": rows})
        return self._not_taken(verb)

    def extended(self, rounds: int) -> tuple[Event | None, OperatorResult]:
        """Decide whether the run can have this number of rounds. There is no event if nothing changes."""
        m = self._machine
        refusal = ""
        if m.has_ended_training or m.stopped or m.ended_early:
            refusal = training_is_over(self._view.name)
        elif rounds == m.rounds:
            return None, OperatorResult(DONE, f"the run has {rounds} rounds already")
        elif self._fixed_rounds:
            refusal = rounds_are_fixed(self._view.plan.method, self._fixed_rounds)
        elif rounds < m.least_rounds:
            refusal = f"round {m.least_rounds} has begun, so --rounds must be at least {m.least_rounds}"
        if refusal:
            return None, OperatorResult(REFUSED, refusal)
        return Extended(rounds), OperatorResult(DONE, f"the run has {rounds} rounds now")

    def _over(self, verb: str) -> OperatorResult:
        if verb == "stop":
            return OperatorResult(DONE, "the run is over already")
        return OperatorResult(REFUSED, "the run is over; start a new run under another name")

    def final_state(self) -> str:
        """Return the state of a run that is over, and "" before."""
        state, _ = state_of(self._machine, self._view)
        return state if state in FINAL else ""

    def shown(self) -> dict[str, Any]:
        """Return what `show` shows: the state of the run, and the newest commands."""
        m, view = self._machine, self._view
        state, reason = state_of(m, view)
        origin = view.origin
        return {
            "run": view.name, "federation": view.federation, "state": state, "reason": reason, "round": m.round,
            "rounds": m.rounds, "revision": self._revision, "phase": m.asked if m.stage is Stage.COLLECTING else "",
            "asked": len(m.cohort) if m.stage is Stage.COLLECTING else 0,
            "answered": len(m.answered) if m.stage is Stage.COLLECTING else 0,
            "over": state in FINAL, "only_run": True, "present": len(m.roster), "connected": view.connected,
            "origin": origin.shown() if origin else {},
            "commands": shown_commands(
                one for one in self._spool.newest_results(SHOWN) if one.verb not in OF_A_QUEUE
            ),
        }  # fmt: skip


def state_of(m: RoundMachine, view: RunView) -> tuple[str, str]:
    """Return the state of a run in one word, and the reason of the state; the reason may be "" while it runs."""
    if m.is_stopped:
        return "stopped", view.ended_early
    if view.diverged:
        return "failed", view.diverged
    if m.stage is Stage.FINISHED:
        return "finished", view.ended_early or f"all {m.rounds} rounds are done"
    if m.paused:
        return ("paused" if m.stage is Stage.GATHERING else "pausing"), m.paused
    if view.disk_full:
        return WAITING, view.disk_full
    if m.stage is not Stage.GATHERING:
        return "running", ""
    if m.next_round_at:
        return WAITING, "policy.pause_seconds or policy.hours delay the next round"
    return WAITING, f"{len(m.roster)} devices are present; a round needs {m.least}"
