"""The work that the worker's thread does now, and the task that it does next."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from protofleet.protocol.link.base import Received
from protofleet.protocol.wire.messages import Task

PLAN: Final = "plan"  # value of `busy_with` while the job of a plan is started


@dataclass(frozen=True, slots=True)
class Question:
    """A task that a device has received, with the name of its broadcast in the store."""

    name: str  # name of the task; tasks of the same name get the same update
    round: int
    phase: str
    broadcast: bytes  # name of the broadcast in the store; empty if the task has no arrays
    epoch: int  # epoch of the coordinator that sent the task
    # Round and phase of the last update of this device that the coordinator has used.
    took: tuple[int, str] | None = None
    personal: bytes = b""  # bytes of the task for this device only

    @property
    def key(self) -> tuple[int, str]:
        """Return the round and the phase."""
        return self.round, self.phase


def question_of(received: Received, task: Task) -> Question:
    parts = f"{received.run}/{task.round}/{task.phase}/{received.object.hex()}"
    name = hashlib.sha256(parts.encode()).hexdigest()
    return Question(name, task.round, task.phase, received.object, received.epoch, task.took, task.personal)


@dataclass
class WorkQueue:
    busy_with: str = ""  # name of the task, or PLAN; empty if the worker has no work
    next: Question | None = None  # the task that waits; a newer task replaces it
    _key: tuple[int, str] = (0, "")  # round and phase of the task that was begun last

    @property
    def busy(self) -> bool:
        return bool(self.busy_with)

    def begin_plan(self) -> None:
        self.busy_with = PLAN

    def begin(self, question: Question) -> None:
        self.busy_with, self._key = question.name, question.key

    def done(self) -> None:
        self.busy_with = ""

    def busy_with_another(self, question: Question) -> bool:
        return self.busy and self.busy_with != question.name

    def take_next(self) -> Question | None:
        question, self.next = self.next, None
        return question

    def change_run(self) -> None:
        """Forget the next task, which belongs to the earlier run; the worker still finishes its present work."""
        self.next, self._key = None, (0, "")

    def knows(self, key: tuple[int, str]) -> bool:
        """Return whether the task of this round and phase is being done or is waiting."""
        return (self.busy and self._key == key) or (self.next is not None and self.next.key == key)
