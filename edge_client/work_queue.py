"""The present work of the worker's thread, and its next work: one piece of work at a time."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from protofleet.protocol.link.base import Received
from protofleet.protocol.wire.messages import Task

PLAN: Final = "plan"  # value of `busy_with` while a plan becomes a job


@dataclass(frozen=True, slots=True)
class Question:
    """A task, and its broadcast."""

    name: str  # equal names demand equal answers
    round: int
    phase: str
    broadcast: bytes  # name of its arrays in the store; empty if there are none
    epoch: int  # epoch of the coordinator that asks

    @property
    def key(self) -> tuple[int, str]:
        """Return the round and the phase."""
        return self.round, self.phase


def question_of(received: Received, task: Task) -> Question:
    parts = f"{received.run}/{task.round}/{task.phase}/{received.object.hex()}"
    name = hashlib.sha256(parts.encode()).hexdigest()
    return Question(name, task.round, task.phase, received.object, received.epoch)


@dataclass
class WorkQueue:
    busy_with: str = ""  # name of the question, or PLAN; empty: nothing
    next: Question | None = None  # only the newest is kept
    _key: tuple[int, str] = (0, "")  # round and phase of the question that was begun last

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
        """Forget the next question of the run before; the worker finishes its present work."""
        self.next, self._key = None, (0, "")

    def knows(self, key: tuple[int, str]) -> bool:
        """Return whether the worker works on this round and phase, or the question waits."""
        return (self.busy and self._key == key) or (self.next is not None and self.next.key == key)
