"""Define what an engine does: it starts the tasks of a job on nodes, starts them again after a loss, and ends them.

An engine does not say what has finished. The folder of each run says that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, Protocol

from protofleet.runtime.children import last_lines
from protofleet.runtime.command.errors import RunError

# In a word of a command and in the name of a log, this text stands for the number of the task, from 0.
TASK: Final = "{task}"


# A held task does not start until an administrator or its owner releases it. A refused task never starts with the
# options of its job.
StateWord = Literal["waits", "runs", "held", "refused", "cancelled"]


class EngineAwayError(RunError):
    """The error for an engine that does not answer at the moment. The tasks of its jobs go on."""


@dataclass(frozen=True)
class EngineJob:
    """A job of an engine: `tasks` tasks that run the same command, each with its own number."""

    name: str  # The name in the engine's list of jobs.
    folder: Path  # The absolute path of a folder that all nodes share. It gets the script, and the logs of the tasks.
    tasks: int
    command: tuple[str, ...]  # TASK inside a word stands for the number of the task.
    at_once: int = 0  # Largest number of tasks that run at the same time; 0 means no limit.
    setup: tuple[str, ...] = ()  # Lines of shell that a task runs before the command.
    options: Mapping[str, str] = field(default_factory=dict)  # Options of the engine, such as partition.
    # If true, a task that the engine starts again waits until the engine has lost its predecessor.
    after_predecessor: bool = False
    minutes: int = (
        0  # Time that a task needs at most, for engines that plan with it; 0 means that it is not known.
    )
    script: str = "job.sh"  # The name of the file in `folder` that is submitted.
    log: str = (
        f"{TASK}.log"  # The name of the log of a task in `folder`. Each start of the task appends to it.
    )

    def log_of(self, task: int) -> Path:
        return self.folder / self.log.replace(TASK, str(task))

    def last_line(self, task: int) -> str:
        """Return the last line of the log of a task; "" if there is no log, or no line in it."""
        with contextlib.suppress(OSError):
            if lines := last_lines(self.log_of(task)):
                return lines[-1]
        return ""


@dataclass(frozen=True)
class TaskState:
    """The state of a task that is still in the engine's list of jobs, or that was cancelled."""

    task: int
    state: StateWord
    node: str = ""  # The node on which the task runs; "" if it does not run.
    reason: str = ""  # The reason why the task waits, in the engine's own words.


class Engine(Protocol):
    """An engine. Each method raises EngineAwayError if the engine does not answer at the moment."""

    @property
    def name(self) -> str: ...

    @property
    def cluster(self) -> str:
        """Return the name of the cluster; the number of a job has a meaning only there."""
        ...

    @property
    def ends_with_command(self) -> bool:
        """Return whether all jobs end together with the command that has submitted them."""
        ...

    @property
    def time_hint(self) -> str:
        """Return the words about the option for the time of a task; "" if the engine has no time limit."""
        ...

    def preflight(self, job: EngineJob) -> None:
        """Raise SettingsError with the way out if the engine cannot take this job."""

    def find(self, job: EngineJob) -> str:
        """Return the id of an earlier job in the queue that was submitted from the same folder, or ""."""
        ...

    def submit(self, job: EngineJob) -> str:
        """Write the script of the job, submit the script, and return the id of the job."""
        ...

    def states(self, job_id: str) -> list[TaskState]:
        """Return the states of the tasks that have not ended, and of cancelled tasks."""
        ...

    def has_forgotten(self, job_id: str) -> bool:
        """Return whether the engine does not know the job any more, not even as a job that has ended."""
        ...

    def cancel(self, job_id: str, kill: bool = False) -> None:
        """Ask the engine to end all tasks of the job in order, or with `kill`, at once."""

    def bad_nodes(self) -> Mapping[str, str]:
        """Return the state of each node that takes no tasks, by the node's name."""
        ...

    def refusal(self, reason: str) -> str:
        """Return the words for a job that the engine refuses, with the way out."""
        ...

    def hold_words(self, job_id: str, task: int) -> str:
        """Return the command that releases a held task."""
        ...
