"""Watch the tasks of a job in an engine's queue: tell of lost nodes, held tasks and an engine that is away."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from protofleet.lab.engines.engine import Engine, EngineAwayError, TaskState

POLL_SECONDS: Final = 5.0
SAY_AGAIN_SECONDS: Final = 60.0
# After this time, tasks that were asked to end are killed.
GRACE_SECONDS: Final = 4.0
CANCEL_POLL_SECONDS: Final = 0.25


@dataclass
class QueueWatch:
    """A watcher of one job. `look` asks the engine once; the caller decides when."""

    engine: Engine
    job_id: str
    say: Callable[[str], None]
    # The number of trials of a task that have not finished, for messages.
    trials_of: Callable[[int], int] = lambda task: 1
    clock: Callable[[], float] = time.monotonic
    cancelled: set[int] = field(default_factory=set)  # Tasks that somebody has cancelled.
    _nodes: dict[int, str] = field(default_factory=dict)  # The node of each task that ran at the last look.
    _held: set[int] = field(default_factory=set)
    _refused: set[str] = field(default_factory=set)  # Reasons that were said.
    _away_said_at: float = float("-inf")

    def look(self) -> list[TaskState] | None:
        """Return the tasks that have not ended; None if the engine does not answer."""
        try:
            states = self.engine.states(self.job_id)
            self.cancelled |= {one.task for one in states if one.state == "cancelled"}
            current = [one for one in states if one.state != "cancelled"]
            self._tell_of_requeued(current)
            self._tell_of_held(current)
        except EngineAwayError as error:
            self._tell_of_absence(error)
            return None
        self._away_said_at = float("-inf")
        return current

    def _tell_of_absence(self, error: EngineAwayError) -> None:
        if self.clock() - self._away_said_at >= SAY_AGAIN_SECONDS:
            self._away_said_at = self.clock()
            self.say(f"{self.engine.name} does not answer: {error}; tasks go on, and it is asked again")

    def _tell_of_requeued(self, states: Sequence[TaskState]) -> None:
        before, now = self._nodes, {one.task: one.node for one in states if one.state == "runs"}
        waiting = {one.task for one in states if one.state == "waits"}
        gone = [task for task, node in before.items() if task in waiting or now.get(task, node) != node]
        bad = self.engine.bad_nodes() if gone else {}
        self._nodes = now
        for node in dict.fromkeys(before[task] for task in gone):
            tasks = [task for task in gone if before[task] == node]
            count = sum(map(self.trials_of, tasks))
            trials, wait, run = (
                ("trial", "waits for", "runs on") if count == 1 else ("trials", "wait for", "run on")
            )
            verb = wait if waiting & set(tasks) else run
            how = f"is lost ({bad[node]})" if node in bad else "has given its place to other work"
            self.say(f"node {node} {how}, its {count} {trials} {verb} another")

    def _tell_of_held(self, states: Sequence[TaskState]) -> None:
        held = {one.task: one for one in states if one.state == "held"}
        new = [held[task] for task in sorted(held.keys() - self._held)]
        self._held = set(held)
        for one in new:
            words = self.engine.hold_words(self.job_id, one.task)
            self.say(f"job {self.job_id}_{one.task} is held by {self.engine.name} ({one.reason}): {words}")
        refused = dict.fromkeys(one.reason for one in states if one.state == "refused")
        for reason in refused.keys() - self._refused:
            self.say(f"job {self.job_id} waits for ever: {self.engine.refusal(reason)}, after --cancel")
        self._refused |= refused.keys()
        if new and (bad := self.engine.bad_nodes()):
            self.say("nodes that take no tasks: " + ", ".join(f"{node} ({how})" for node, how in bad.items()))


def end_job(engine: Engine, job_id: str, say: Callable[[str], None]) -> None:
    """Cancel the job and wait until none of its tasks is left. Tasks that do not end in time are killed."""
    killed = asked = False
    deadline = time.monotonic() + GRACE_SECONDS
    said_at = float("-inf")
    while True:
        try:
            if not asked:
                engine.cancel(job_id)
                asked = True
            if all(one.state == "cancelled" for one in engine.states(job_id)):
                return
            if not killed and time.monotonic() > deadline:
                engine.cancel(job_id, kill=True)
                killed = True
        except EngineAwayError as error:
            if time.monotonic() - said_at >= SAY_AGAIN_SECONDS:
                said_at = time.monotonic()
                say(f"{engine.name} does not answer: {error}; job {job_id} is cancelled when it does")
        time.sleep(CANCEL_POLL_SECONDS)
