"""The devices from which each `here` requests a hello.

These devices have sent messages, are not in the roster, and have sent no bye. Such a device may believe
that it takes part, although its last hello was lost, its connection seemed to be lost, or it was banned for
a while. After a reply to its hello, a device need not repeat the hello. From then on the device is in the
roster or is named in `here`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

REQUEST_SECONDS: Final = 600.0  # after this time the device has sent a hello by itself, or it will send none


class HelloRequests:
    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def __contains__(self, device: str) -> bool:
        return device in self._since

    def add(self, device: str, now: float) -> None:
        self._since[device] = now

    def discard(self, device: str) -> None:
        """Remove a device that is in the roster, or that knows that it is not."""
        self._since.pop(device, None)

    def names(self, ignored: Collection[str], most: int, now: float) -> list[str]:
        """Return up to `most` devices that are not ignored, the newest first."""
        self._since = {
            device: now if device in ignored else since
            for device, since in self._since.items()
            if device in ignored or now < since + REQUEST_SECONDS
        }
        heard = [device for device in self._since if device not in ignored]
        return sorted(heard, key=lambda device: -self._since[device])[: max(0, most)]
