"""The devices that did not answer a question within the whole patience; the run does not wait for them.

This ends when they answer. A hello is no answer: a device that only sends hellos would cost the whole
patience each time it is drawn. So a silent device gets seats that other devices leave free. If no seat is
free, one silent device is asked in each round in addition to the cohort, in turns. Once it has answered a
question that it was asked, in time or late, it is drawn as before. Nothing of this survives a restart,
because nothing depends on it for long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

Question = tuple[int, str, bytes]  # round, phase, broadcast
MOST_QUESTIONS: Final = 8  # questions that are kept of one device: it may answer an earlier one than the last


@dataclass
class SilentDevices:
    _asked: dict[str, deque[Question]] = field(
        default_factory=dict
    )  # newest questions of each silent device, without an answer
    _turns: dict[str, int] = field(default_factory=dict)  # turn in which each device was asked in addition
    _turn: int = 0

    @property
    def devices(self) -> AbstractSet[str]:
        return self._asked.keys()

    def gave_no_answer(self, devices: Iterable[str], question: Question) -> None:
        for device in sorted(devices):
            self._asked.setdefault(device, deque(maxlen=MOST_QUESTIONS)).append(question)

    def asked(self, devices: Iterable[str], question: Question) -> None:
        """Note a question that was put to the devices that are silent."""
        self.gave_no_answer([device for device in devices if device in self._asked], question)

    def answered(self, device: str, question: Question) -> bool:
        """Return whether a silent device has answered a question that it was asked; then it is not silent."""
        if question not in self._asked.get(device, ()):
            return False
        del self._asked[device]
        self._turns.pop(device, None)
        return True

    def in_turn(self, present: AbstractSet[str]) -> tuple[str, ...]:
        """Return the silent present device that was asked longest ago, if there is one."""
        waiting = sorted(
            present & self._asked.keys(), key=lambda device: (self._turns.get(device, 0), device)
        )
        self._turn += 1
        self._turns |= dict.fromkeys(waiting[:1], self._turn)
        return tuple(waiting[:1])
