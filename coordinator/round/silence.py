"""The silent devices, which sent no update within policy.patience_seconds. The run does not wait for them.

A hello does not end the silence. Otherwise a device that sends hellos but no updates would delay each round whose
cohort includes it. Each delay would last policy.patience_seconds. A silent device only gets a seat that other devices
leave free. If no seat is free, one silent device gets the task in addition to the cohort; the silent devices take
turns. When a silent device has sent an update for one of its tasks, even a late update, it is no longer silent. This
state is not stored, because no decision depends on it for long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

Question = tuple[int, str, bytes]  # Round, phase and hash of the broadcast, which identify a task.
# Largest number of tasks that are stored for a device. Several tasks are stored, because an update may be for
# an older task.
MOST_QUESTIONS: Final = 8


@dataclass
class SilentDevices:
    # Silent device -> its newest tasks. The device has not sent an update for any of these tasks.
    _asked: dict[str, deque[Question]] = field(default_factory=dict)
    # Silent device -> number of the last turn in which it was asked in addition to the cohort.
    _turns: dict[str, int] = field(default_factory=dict)
    _turn: int = 0

    @property
    def devices(self) -> AbstractSet[str]:
        return self._asked.keys()

    def gave_no_answer(self, devices: Iterable[str], question: Question) -> None:
        for device in sorted(devices):
            self._asked.setdefault(device, deque(maxlen=MOST_QUESTIONS)).append(question)

    def asked(self, devices: Iterable[str], question: Question) -> None:
        """Record that a task was sent to these devices; devices that are not silent are ignored."""
        self.gave_no_answer([device for device in devices if device in self._asked], question)

    def forgive(self, device: str) -> None:
        """End the silence of a device without which the run can do nothing."""
        self._asked.pop(device, None)
        self._turns.pop(device, None)

    def answered(self, device: str, question: Question) -> bool:
        """End the silence of a device if it sent an update for one of its tasks; return whether it was silent."""
        if question not in self._asked.get(device, ()):
            return False
        self.forgive(device)
        return True

    def in_turn(self, present: AbstractSet[str]) -> tuple[str, ...]:
        """Return the present silent device whose last turn was longest ago; () if no silent device is present."""
        waiting = sorted(
            present & self._asked.keys(), key=lambda device: (self._turns.get(device, 0), device)
        )
        self._turn += 1
        self._turns |= dict.fromkeys(waiting[:1], self._turn)
        return tuple(waiting[:1])
