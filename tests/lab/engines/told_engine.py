"""An engine inside the test. Each request for the state of the queue runs one task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from protofleet.lab.engines.engine import EngineAwayError, EngineJob, TaskState
from protofleet.lab.engines.node_check import answer_on_node

Task = Callable[[EngineJob, int], None]


def nothing(job: EngineJob, task: int) -> None:
    """Do nothing, like a task that is killed at once."""


@dataclass
class ToldEngine:
    perform: Task = nothing
    check: Callable[[EngineJob], None] = field(default=lambda job: answer(job))
    name: str = "slurm"
    ends_with_command: bool = False
    time_hint: str = "; give it more with --slurm time=..."
    cluster: str = "probe"
    jobs: dict[str, EngineJob] = field(
        default_factory=dict
    )  # All jobs that were submitted, without tests of a node.
    left: dict[str, list[int]] = field(default_factory=dict)  # The tasks of each job that have not ended.
    cancelled: dict[str, list[int]] = field(default_factory=dict)
    told: list[list[TaskState]] = field(
        default_factory=list
    )  # States to return first, instead of running tasks.
    bad: Mapping[str, str] = field(default_factory=dict)
    forgetful: bool = False  # True if the engine forgets jobs whose tasks have ended.
    away: int = 0  # Number of requests that the engine does not answer.

    def preflight(self, job: EngineJob) -> None:
        pass

    def find(self, job: EngineJob) -> str:
        return next((number for number, left in self.left.items() if left), "")

    def submit(self, job: EngineJob) -> str:
        number = str(len(self.jobs) + 1)
        if job.script == "check.sh":
            self.check(job)
            return "check"
        self.jobs[number], self.left[number] = job, list(range(job.tasks))
        return number

    def states(self, job_id: str) -> list[TaskState]:
        if self.away:
            self.away -= 1
            raise EngineAwayError("Unable to contact slurm controller")
        if self.told:
            return self.told.pop(0)
        left = self.left.get(job_id, [])
        found = [TaskState(task, "runs" if task == left[0] else "waits", "n1") for task in left]
        if left:
            task = left.pop(0)
            self.perform(self.jobs[job_id], task)
        return found + [TaskState(task, "cancelled") for task in self.cancelled.get(job_id, [])]

    def has_forgotten(self, job_id: str) -> bool:
        return self.forgetful

    def cancel(self, job_id: str, kill: bool = False) -> None:
        self.cancelled[job_id] = self.left.get(job_id, [])
        self.left[job_id] = []

    def bad_nodes(self) -> Mapping[str, str]:
        return self.bad

    def refusal(self, reason: str) -> str:
        return f"Slurm refuses the job: {reason}; correct it"

    def hold_words(self, job_id: str, task: int) -> str:
        return f"scontrol release {job_id}_{task}"


def answer(job: EngineJob) -> None:
    """Answer like the first task on a node that shares the folder."""
    answer_on_node(job.folder, job.command[-1])
