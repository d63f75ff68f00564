"""The end of a run: whoever was told of it, and has not said that it heard, is told again for a while.

A device that missed the word hears no `here` any more and asks, so the coordinator stays for as long as that takes.
Devices of minor version 0 say nothing at the end, and nobody waits for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

STAY_SECONDS: Final = 150.0  # longer than a device takes to notice that no `here` comes any more
AGAIN_SECONDS: Final = 15.0


class Parting:
    def __init__(self) -> None:
        self.begun = False
        self._awaited: set[str] = set()
        self._until = self._again_at = float("inf")

    @property
    def wake_at(self) -> float:
        return min(self._until, self._again_at)

    def begins(self, devices: Iterable[str], now: float) -> None:
        self.begun, self._awaited = True, set(devices)
        self._until, self._again_at = now + STAY_SECONDS, now + AGAIN_SECONDS

    def came(self, device: str) -> None:
        self._awaited.add(device)

    def gone(self, device: str) -> None:
        self._awaited.discard(device)

    def over(self, now: float) -> bool:
        return self.begun and (not self._awaited or now >= self._until)

    def to_tell_again(self, now: float) -> list[str]:
        if now < self._again_at:
            return []
        self._again_at = now + AGAIN_SECONDS
        return sorted(self._awaited)
