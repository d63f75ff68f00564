"""Decide the next step of the queue from the rows of the queue and from the state of the active runs.

The rows say what is wanted, and the folders of the active runs say what is true. The decision never depends on the
event after which it is made. So a process that was killed between two steps goes on with the next step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from protofleet.coordinator.queue.states import (
    FAILED,
    FINAL,
    FINISHED,
    PAUSED,
    PAUSING,
    QUEUED,
    RUNNING,
    STARTING,
    SUBMITTED,
    QueuedRun,
    RunFact,
    active_runs,
    turn,
)


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a row of the queue."""

    run: str
    state: str
    reason: str
    closed: bool = False


@dataclass(frozen=True, slots=True)
class Conduct:
    """An order to begin the work on an active run, or to go on with it."""

    run: str


@dataclass(frozen=True, slots=True)
class Tell:
    """An order to pause, resume or stop an active run. It is given again until the folder of the run shows it."""

    run: str
    verb: str
    words: str


QueueStep: TypeAlias = Change | Conduct | Tell


def settle(
    runs: Mapping[str, QueuedRun], facts: Mapping[str, RunFact], slots: int = 1, told: Collection[str] = ()
) -> QueueStep | None:  # fmt: skip
    """Return the next step, or None if there is nothing to do.

    `facts` has the active runs on which the work has begun in this process. At most `slots` runs are active. `told`
    has the runs that get no order now, because the folder does not show their last order yet.
    """
    active = active_runs(runs)
    is_free = len(active) < slots
    for run in sorted(runs.values(), key=turn):
        if change := _change(run, runs, is_free, facts.get(run.name)):
            return change
    orders = (_order(run, facts.get(run.name)) for run in active if run.name not in told)
    return next((order for order in orders if order), None)


def _change(
    run: QueuedRun, runs: Mapping[str, QueuedRun], is_free: bool, fact: RunFact | None
) -> Change | None:
    if run.is_active and fact is not None and fact.state in FINAL:
        return _end(run, fact)
    match run.state:
        case "submitted":
            return _submitted(run, runs.get(run.after))
        case "queued" if is_free or run.is_active:
            # The runs come in the order in which they start, so this is the first queued run that may start.
            # An active run has begun before, and its folder must exist.
            return Change(run.name, RUNNING if run.is_active else STARTING, "")
        case "starting" if fact is not None:
            return Change(run.name, RUNNING, "")
        case "pausing" if fact is not None and fact.state == PAUSED:
            return Change(run.name, PAUSED, run.reason)
    return None


def _submitted(run: QueuedRun, before: QueuedRun | None) -> Change | None:
    # The queue forgets a run that ended long ago, unless a run waits for it.
    if before is None or before.state == FINISHED:
        return Change(run.name, QUEUED, "waits for its turn")
    if before.state in FINAL:
        words = "has failed" if before.state == FAILED else "was stopped"
        return Change(run.name, FAILED, f"{before.name} {words}, and this run was to come after it")
    return None


def _end(run: QueuedRun, fact: RunFact) -> Change | None:
    if run.state not in FINAL:
        return Change(run.name, fact.state, fact.reason)
    return Change(run.name, run.state, run.reason, closed=True) if fact.closed else None


def _order(active: QueuedRun, fact: RunFact | None) -> Conduct | Tell | None:
    if fact is None:
        # The folder of a restored run stays closed, because an open round would ask devices before the run pauses.
        waits = active.state in (SUBMITTED, QUEUED) or (active.restored and active.state == PAUSED)
        return None if waits else Conduct(active.name)
    is_paused = fact.state in (PAUSING, PAUSED)
    match active.state:
        case "running" if is_paused:
            return Tell(active.name, "resume", "")
        case "pausing" | "paused" if not is_paused:
            return Tell(active.name, "pause", active.reason)
        case "stopped" if fact.state not in FINAL:
            return Tell(active.name, "stop", active.reason)
    return None
