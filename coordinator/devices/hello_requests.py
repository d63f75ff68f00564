"""Who was heard and is not in the roster, without a word of its own that it leaves: each `here` names it.

It may believe that it takes part: its last hello was lost, its connection was taken for lost, or nobody listened to
it for a while. So a device may be quiet once it was told anything: it is in the roster from then on, or named here.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

REQUEST_SECONDS: Final = 600.0  # after that it says hello by itself, or has gone for good


class HelloRequests:
    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def __contains__(self, device: str) -> bool:
        return device in self._since

    def add(self, device: str, now: float) -> None:
        self._since[device] = now

    def discard(self, device: str) -> None:
        """It is in the roster, or knows that it is not."""
        self._since.pop(device, None)

    def names(self, ignored: Collection[str], most: int, now: float) -> list[str]:
        """Those that would be heard, newest first."""
        self._since = {
            device: now if device in ignored else since
            for device, since in self._since.items()
            if device in ignored or now < since + REQUEST_SECONDS
        }
        heard = [device for device in self._since if device not in ignored]
        return sorted(heard, key=lambda device: -self._since[device])[: max(0, most)]
