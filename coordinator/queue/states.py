"""Define the states of a run in the queue, and the commands that change them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from protofleet.coordinator.queue.generation import Generation
from protofleet.coordinator.spool.origin import Origin

SUBMITTED: Final = "submitted"
QUEUED: Final = "queued"
STARTING: Final = "starting"
RUNNING: Final = "running"
PAUSING: Final = "pausing"
PAUSED: Final = "paused"
FINISHED: Final = "finished"
FAILED: Final = "failed"
STOPPED: Final = "stopped"
WAITING: Final = "waiting"  # State of an active run that waits for devices; the queue does not store it.
FINAL: Final = frozenset({FINISHED, FAILED, STOPPED})
STATES: Final = (SUBMITTED, QUEUED, STARTING, RUNNING, PAUSING, PAUSED, FINISHED, FAILED, STOPPED)

# The state after a command, by the state before it and the verb. If a pair is missing, the command is refused.
NEXT_STATE: Final[Mapping[tuple[str, str], str]] = {
    **{(state, "stop"): STOPPED for state in STATES if state not in (FINISHED, FAILED)},
    (SUBMITTED, "pause"): PAUSED,
    (QUEUED, "pause"): PAUSED,
    (STARTING, "pause"): PAUSING,
    (RUNNING, "pause"): PAUSING,
    (PAUSING, "pause"): PAUSING,
    (PAUSED, "pause"): PAUSED,
    (SUBMITTED, "resume"): SUBMITTED,
    (QUEUED, "resume"): QUEUED,
    (STARTING, "resume"): STARTING,
    (RUNNING, "resume"): RUNNING,
    (PAUSING, "resume"): RUNNING,
    (PAUSED, "resume"): SUBMITTED,
}


@dataclass(frozen=True, slots=True)
class QueuedRun:
    """A row of the queue: a run as it is wanted. The folder of the run holds how far the run is."""

    name: str
    number: int  # Runs of the same priority start in the order of their numbers.
    state: str
    reason: str  # Reason of the state; it may be "" only while the run starts or runs.
    revision: int  # Number of changes of this row.
    rounds: int  # Number of rounds, in the experiment or by `extend`.
    priority: int  # Runs with a higher priority start earlier.
    after: str  # Name of the run that must finish before this run, or "".
    experiment: str  # Text of the experiment, in TOML.
    operator: str
    submitted: int  # Unix time; so are `started` and `ended`, which are 0 until then.
    started: int = 0
    ended: int = 0
    # 1 if nothing of the run is left to do: its devices know its end, and its summary is written.
    closed: int = 0
    # The snapshot of another run with which this run starts, as in `Origin`; "" and 0 without one.
    origin_run: str = ""
    origin_round: int = 0
    origin_object: str = ""
    # How often the run has gone on behind its devices, plus 1; and the first generation whose half a device may keep.
    generation: int = 1
    kept_from: int = 1
    # 1 if the run came back from a backup, and nothing is asked until an operator resumes it.
    restored: int = 0

    @property
    def on_wire(self) -> Generation:
        """Return the names of the run on the wire."""
        return Generation(self.name, self.generation, self.kept_from)

    @property
    def origin(self) -> Origin | None:
        return Origin(self.origin_run, self.origin_round, self.origin_object) if self.origin_run else None

    @property
    def may_come_again(self) -> bool:
        """Return whether a run of this name can be submitted again, because this one has failed or never started."""
        is_given_up = self.state == FAILED or (self.state == STOPPED and not self.started)
        return bool(self.closed) and is_given_up

    @property
    def is_active(self) -> bool:
        """Return whether devices may hold the state of this run, so that it has a slot."""
        return bool(self.started) and not self.closed


@dataclass(frozen=True, slots=True)
class RunFact:
    """The state of an active run according to its own folder; only data that are on the disk count."""

    state: str  # A state of NEXT_STATE, or WAITING if the run waits for devices.
    reason: str
    closed: bool = False  # True if nothing of the run is left to do.


def active_runs(runs: Mapping[str, QueuedRun]) -> list[QueuedRun]:
    """Return the active runs, the oldest first."""
    return sorted((run for run in runs.values() if run.is_active), key=lambda run: (run.started, run.number))


def in_groups(runs: Mapping[str, QueuedRun]) -> tuple[list[QueuedRun], list[QueuedRun], list[QueuedRun]]:
    """Return the active runs, the oldest first, the waiting runs, and the runs that are over, the newest first."""
    active = active_runs(runs)
    begun = {run.name for run in active}
    others = [run for run in runs.values() if run.name not in begun]
    waiting = sorted((run for run in others if run.state not in FINAL), key=turn)
    over = sorted((run for run in others if run.state in FINAL), key=lambda run: (-run.ended, -run.number))
    return active, waiting, over


def waits_for(run: QueuedRun, runs: Mapping[str, QueuedRun], slots: int = 1) -> str:
    """Return what a run waits for now, or the reason that its row holds."""
    if run.state == SUBMITTED and run.after in runs and runs[run.after].state != FINISHED:
        return f"waits for the end of {run.after}, which is {runs[run.after].state}"
    if run.state != QUEUED:
        return run.reason
    active = active_runs(runs)
    if run.is_active or len(active) < slots:
        return run.reason
    active.sort(key=lambda one: one.state == PAUSED)
    words = "waits for " + ", or ".join(f"{one.name}, which is {one.state}" for one in active)
    if active[-1].state == PAUSED:
        # The devices keep the state of a paused run, and have room for only a few runs.
        words += " and holds the devices; resume it or stop it"
    if before := sum(turn(other) < turn(run) for other in runs.values() if other.state == QUEUED):
        words += f"; {before} {'run is' if before == 1 else 'runs are'} before it in the queue"
    return words


def turn(run: QueuedRun) -> tuple[int, int]:
    """Return the key by which queued runs are sorted."""
    return -run.priority, run.number
