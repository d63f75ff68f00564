"""The end of a run: `finished` is sent again to devices that have not confirmed it.

A device that missed `finished` notices after a while that no `here` arrives any more, and then sends a
message. So the coordinator keeps running for that time. Devices of minor version 0 never confirm `finished`,
so the coordinator does not wait for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

# Largest number of seconds for which the coordinator keeps running after the end. Within this time, each device
# notices that no `here` message arrives.
STAY_SECONDS: Final = 150.0
AGAIN_SECONDS: Final = 15.0


class Shutdown:
    def __init__(self) -> None:
        self.begun = False
        self._unconfirmed: set[str] = set()
        self._until = self._again_at = float("inf")

    @property
    def wake_at(self) -> float:
        return min(self._until, self._again_at)

    def begin(self, devices: Iterable[str], now: float) -> None:
        self.begun, self._unconfirmed = True, set(devices)
        self._until, self._again_at = now + STAY_SECONDS, now + AGAIN_SECONDS

    def wait_for(self, device: str) -> None:
        self._unconfirmed.add(device)

    def confirmed(self, device: str) -> None:
        """Record that a device has confirmed the end with a bye, or that the device is gone."""
        self._unconfirmed.discard(device)

    def is_over(self, now: float) -> bool:
        return self.begun and (not self._unconfirmed or now >= self._until)

    def due(self, now: float) -> list[str]:
        """Return the devices to which `finished` must be sent again now."""
        if now < self._again_at:
            return []
        self._again_at = now + AGAIN_SECONDS
        return sorted(self._unconfirmed)
