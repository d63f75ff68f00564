"""Checks of a queue under faults: no run and no command is lost, and a pause holds until the run is resumed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from protofleet.coordinator.queue.states import FINAL, FINISHED, PAUSED, PAUSING, QueuedRun

# Errors of a coordinator that another one has replaced, in the folder or at the broker.
TAKEN_OVER = (
    "another coordinator, of epoch",
    "another coordinator of this federation was started",
    "a later coordinator conducts this federation",
)
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Told:
    """A command of the operator, and the result that the coordinator has sent."""

    verb: str
    run: str
    verdict: str


@dataclass
class RowsCheck:
    """A check of the rows that the coordinator shows, in the order in which it has shown them."""

    problems: list[str] = field(default_factory=list)
    _submitted: set[str] = field(default_factory=set)
    # Paused run -> the number of its rounds when it was first seen paused; None until then.
    _held: dict[str, int | None] = field(default_factory=dict)
    _last: Mapping[str, Row] = field(default_factory=dict)

    def giving(self, verb: str, run: str) -> None:
        """Note that a command is given from now on, so it may have an effect before its result is sent."""
        if verb == "resume":
            self._held.pop(run, None)

    def told(self, told: Told) -> None:
        if told.verdict != "done":
            return
        if told.verb == "submit":
            self._submitted.add(told.run)
        elif told.verb == "pause":
            self._held[told.run] = None

    def seen(self, rows: Mapping[str, Row], rounds: Mapping[str, int]) -> None:
        """Check the rows of an answer; `rounds` are the rounds that each run had after the answer."""
        lost = sorted(self._submitted - rows.keys())
        self.problems += [f"{run} was submitted, and is not in the queue any more" for run in lost]
        for run, row in rows.items():
            self.problems += self._of_one(run, row, self._last.get(run), rounds[run])
        self._last = rows

    def _of_one(self, run: str, row: Row, before: Row | None, rounds: int) -> Iterable[str]:
        state = row["state"]
        if before is not None and row["revision"] < before["revision"]:
            yield f"the row of {run} has gone back from revision {before['revision']} to {row['revision']}"
        if before is not None and before["over"] and not row["over"]:
            yield f"{run} was over, and is {state} again"
        if state in FINAL and state != FINISHED:
            yield f"{run} is {state}: {row['reason']}"
        if run not in self._held:
            if state in (PAUSED, PAUSING):
                yield f"{run} is {state}, and nobody has paused it: {row['reason']}"
        elif state not in (PAUSED, PAUSING, *FINAL):
            yield f"{run} is {state}, although it was paused"
        elif state == PAUSED:
            paused_at = self._held[run]
            self._held[run] = rounds if paused_at is None else paused_at
            if paused_at not in (None, rounds):
                yield f"{run} has done round {rounds} while it was paused after round {paused_at}"


def queue_violations(rows: Mapping[str, QueuedRun], kept: Sequence[Told], told: Sequence[Told]) -> list[str]:
    """Compare the file of the queue with the results that the operator got; `kept` are the commands in the file."""
    return [*runs_are_over(rows, told), *commands_kept_once(kept, told)]


def runs_are_over(rows: Mapping[str, QueuedRun], told: Sequence[Told]) -> Iterable[str]:
    for one in told:
        if one.verb == "submit" and one.verdict == "done":
            row = rows.get(one.run)
            if row is None or row.state != FINISHED or not row.closed:
                yield f"{one.run} is {row.state if row else 'missing'} in the file of the queue, not finished"


def commands_kept_once(kept: Sequence[Told], told: Sequence[Told]) -> Iterable[str]:
    """Find commands with a result that the file lacks, has twice, or has in another order.

    A submission that the operator tried again is refused the second time, so only its success counts.
    """
    found, wanted = (
        [one for one in them if one.verb != "submit" or one.verdict == "done"] for them in (kept, told)
    )
    if submissions(found) != submissions(wanted):
        yield f"the queue has the submissions {submissions(found)}, the operator was told {submissions(wanted)}"
    if others(found) != others(wanted):
        yield f"the queue has the commands {others(found)}, the operator was told {others(wanted)}"


def one_coordinator(log: str) -> Iterable[str]:
    """Find a coordinator that took over the folder from another one, in the log of all coordinators."""
    for line in log.splitlines():
        if any(words in line for words in TAKEN_OVER):
            yield f"two coordinators conducted the queue: {line[:200]}"
            return


def submissions(commands: Iterable[Told]) -> list[str]:
    return [one.run for one in commands if one.verb == "submit"]


def others(commands: Iterable[Told]) -> list[str]:
    return [f"{one.verb} {one.run}: {one.verdict}" for one in commands if one.verb != "submit"]
