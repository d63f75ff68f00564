"""Devices that were heard from, are not in the roster, and have not said bye: each `here` asks them for a hello.

Such a device may believe that it takes part: its last hello was lost, its connection was taken for lost, or it was
banned for a while. So a device need not repeat its hello once it was answered: from then on it is in the roster, or
named in `here`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

REQUEST_SECONDS: Final = 600.0  # after that it sends a hello by itself, or is gone for good


class HelloRequests:
    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def __contains__(self, device: str) -> bool:
        return device in self._since

    def add(self, device: str, now: float) -> None:
        self._since[device] = now

    def discard(self, device: str) -> None:
        """The device is in the roster, or knows that it is not."""
        self._since.pop(device, None)

    def names(self, ignored: Collection[str], most: int, now: float) -> list[str]:
        """Those that are not ignored, newest first."""
        self._since = {
            device: now if device in ignored else since
            for device, since in self._since.items()
            if device in ignored or now < since + REQUEST_SECONDS
        }
        heard = [device for device in self._since if device not in ignored]
        return sorted(heard, key=lambda device: -self._since[device])[: max(0, most)]
