"""A device's will: worth a short doubt, not a leave.

The device has signed it before anything happened, so whoever has it may say it at any time, and a broker that was
taken over would keep a device out of every round by it. A device in doubt is asked whether it is there and stays what
it was. It has left when nothing new is heard of it for as long as a device that has left may take to come back; what
it says in the meantime shows that it is there. Whether it was there all the time, so that its will was not due, or
came back, is told by its boot, or by the birth of a new connection, which other words of it may have overtaken.
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

BIRTH_SECONDS: Final = 2.0  # in which a birth has come, after other words of the same connection

Mark = tuple[int, int]  # boot and newest sequence that were heard


@dataclass
class LastWills:
    seconds: float  # without a sign of life
    counted: Counter[tuple[str, str]] = field(default_factory=Counter)  # device, outcome
    _open: dict[str, tuple[float, Mark]] = field(default_factory=dict)  # since when, and what had been heard
    _there: dict[str, float] = field(default_factory=dict)  # since when, with no birth yet
    _refuted: list[str] = field(default_factory=list)  # and not told of

    @property
    def wake_at(self) -> float:
        left = min((since for since, _ in self._open.values()), default=float("inf")) + self.seconds
        if self._refuted:
            return 0.0
        return min(left, min(self._there.values(), default=float("inf")) + BIRTH_SECONDS)

    def __len__(self) -> int:
        return len(self._open)

    def received(self, device: str, heard: Mark, now: float) -> bool:
        """Whether it is new: said again, a will neither ends a doubt nor prolongs it."""
        if device in self._open:
            return False
        if device in self._there:  # another, and no birth since the one before
            self._refute(device)
        self._open[device] = (now, heard)
        return True

    def heard_from(self, device: str, heard: Mark, now: float) -> None:
        """Whatever new has been heard of a device in doubt settles that."""
        if device not in self._open or heard <= self._open[device][1]:
            return
        _, (boot, _) = self._open[device]
        if heard[0] > boot:
            self.resolve(device, RETURNED)
        else:
            del self._open[device]
            self._there[device] = now

    def take_refuted(self, now: float) -> list[str]:
        """Who was there all the time, as no birth of it has come."""
        found = [device for device, since in self._there.items() if now >= since + BIRTH_SECONDS]
        for device in found:
            self._refute(device)
        told, self._refuted = self._refuted, []
        return told

    def _refute(self, device: str) -> None:
        del self._there[device]
        self.counted[device, REFUTED] += 1
        self._refuted.append(device)

    def resolve(self, device: str, outcome: str) -> float | None:
        """Since when it was in doubt; None where it was not, or is not any more."""
        if self._there.pop(device, None) is not None:
            self.counted[device, outcome] += 1
        if (doubt := self._open.pop(device, None)) is None:
            return None
        self.counted[device, outcome] += 1
        return doubt[0]

    def timed_out(self, now: float) -> dict[str, float]:
        """Of whom nothing was heard for too long, and since when."""
        gone = {device: since for device, (since, _) in self._open.items() if now >= since + self.seconds}
        for device in gone:
            self.resolve(device, LEFT)
        return gone
