"""Silent devices, which sent no update within policy.patience_seconds; the run does not wait for them.

A hello does not end the silence, because a device that only sends hellos would cost the whole patience each
time that it is drawn. A silent device only gets a seat that other devices leave free. If no seat is free,
each round asks one silent device in addition to the cohort, in turns. Once a silent device has sent an
update for one of its tasks, in time or late, it is drawn like the other devices again. This state is not
stored, because nothing depends on it for long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

Question = tuple[int, str, bytes]  # round, phase, broadcast
# Most tasks that are kept for a device; its update may be for an earlier task than the last.
MOST_QUESTIONS: Final = 8


@dataclass
class SilentDevices:
    _asked: dict[str, deque[Question]] = field(
        default_factory=dict
    )  # silent device -> its newest tasks, for which no update has arrived
    _turns: dict[str, int] = field(default_factory=dict)  # turn in which each device was asked in addition
    _turn: int = 0

    @property
    def devices(self) -> AbstractSet[str]:
        return self._asked.keys()

    def gave_no_answer(self, devices: Iterable[str], question: Question) -> None:
        for device in sorted(devices):
            self._asked.setdefault(device, deque(maxlen=MOST_QUESTIONS)).append(question)

    def asked(self, devices: Iterable[str], question: Question) -> None:
        """Note a task that was sent to `devices`, if they are silent."""
        self.gave_no_answer([device for device in devices if device in self._asked], question)

    def answered(self, device: str, question: Question) -> bool:
        """Return whether a silent device sent an update for one of its tasks; then it is not silent any more."""
        if question not in self._asked.get(device, ()):
            return False
        del self._asked[device]
        self._turns.pop(device, None)
        return True

    def in_turn(self, present: AbstractSet[str]) -> tuple[str, ...]:
        """Return the present silent device whose last turn was longest ago, if there is one."""
        waiting = sorted(
            present & self._asked.keys(), key=lambda device: (self._turns.get(device, 0), device)
        )
        self._turn += 1
        self._turns |= dict.fromkeys(waiting[:1], self._turn)
        return tuple(waiting[:1])
