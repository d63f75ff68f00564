"""The devices from which the coordinator requests a hello in its `here` messages.

Each of these devices has sent messages, is not in the roster, and has sent no bye. The device may believe that
it takes part. Its last hello may have been lost, its connection may have seemed lost, or it may have been
banned for a while. A device that has received a reply to its hello need not repeat the hello. So the
coordinator must either have the device in the roster or name the device in its `here` messages.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

REQUEST_SECONDS: Final = 600.0  # A running device sends a hello by itself within this many seconds.
REPLY_SECONDS: Final = 10.0  # Seconds in which a device usually replies to a welcome.


class HelloRequests:
    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._since)

    def __contains__(self, device: str) -> bool:
        return device in self._since

    def add(self, device: str, now: float) -> None:
        self._since[device] = now

    def is_new(self, device: str, now: float) -> bool:
        """Return whether the device may still reply to the last request, so that another one would be too early."""
        return device in self._since and now < self._since[device] + REPLY_SECONDS

    def discard(self, device: str) -> None:
        """Remove a device. It has joined the roster, or it knows that it does not take part."""
        self._since.pop(device, None)

    def names(self, ignored: Collection[str], most: int, now: float) -> list[str]:
        """Return up to `most` devices that are not ignored; the device that was added last comes first."""
        self._since = {
            device: now if device in ignored else since
            for device, since in self._since.items()
            if device in ignored or now < since + REQUEST_SECONDS
        }
        heard = [device for device in self._since if device not in ignored]
        return sorted(heard, key=lambda device: -self._since[device])[: max(0, most)]
