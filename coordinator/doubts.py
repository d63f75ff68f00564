"""A device's will: worth a short doubt, not a leave.

The device has signed it before anything happened, so whoever has it may say it at any time, and a broker that was
taken over would keep a device out of every round by it. A device in doubt is asked whether it is there and stays what
it was. It has left when nothing new is heard of it for as long as a device that has left may take to come back; what
it says in the meantime refutes its will.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

log = logging.getLogger("protofleet.coordinator")

LEFT: Final = "left"
RETURNED: Final = "returned"
REFUTED: Final = "refuted"
OUTCOMES: Final = {
    LEFT: "nothing was heard of it after that",
    RETURNED: "it had lost its connection and came back",
    REFUTED: "it was there all the time",
}

Mark = tuple[int, int]  # boot and newest sequence that were heard


@dataclass
class Doubts:
    seconds: float  # without a sign of life
    counted: Counter[tuple[str, str]] = field(default_factory=Counter)  # device, outcome
    _open: dict[str, tuple[float, Mark]] = field(default_factory=dict)  # since when, and what had been heard

    @property
    def wake_at(self) -> float:
        return min((since for since, _ in self._open.values()), default=float("inf")) + self.seconds

    def __len__(self) -> int:
        return len(self._open)

    def raise_about(self, device: str, heard: Mark, now: float) -> bool:
        """Whether it is new: said again, a will neither ends a doubt nor prolongs it."""
        if device in self._open:
            return False
        self._open[device] = (now, heard)
        return True

    def refuted(self, device: str, heard: Mark) -> bool:
        """Whether something new has been heard of a device in doubt."""
        if device not in self._open or heard <= self._open[device][1]:
            return False
        self.settle(device, REFUTED)
        return True

    def settle(self, device: str, outcome: str) -> float | None:
        """Since when it was in doubt; None where it was not."""
        if (doubt := self._open.pop(device, None)) is None:
            return None
        self.counted[device, outcome] += 1
        return doubt[0]

    def over(self, now: float) -> dict[str, float]:
        """Of whom nothing was heard for too long, and since when."""
        gone = {device: since for device, (since, _) in self._open.items() if now >= since + self.seconds}
        for device in gone:
            self.settle(device, LEFT)
        return gone
