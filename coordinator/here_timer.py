"""The times at which a coordinator sends `here`, which names the devices that it waits for.

The coordinator sends `here` every minute. While it waits for updates, it also sends `here` 15, 30 and 60 s
after the task. So a device that has not received the task, or an earlier `here`, learns that the
coordinator waits for it.
"""

from __future__ import annotations

from typing import Final

ASK_SECONDS: Final = 15.0  # from a task to the first `here` that names the devices whose updates are missing
# A device that receives no new `here` for a longer time concludes that messages are withheld.
HERE_SECONDS: Final = 60.0
NEVER: Final = float("inf")


class HereTimer:
    def __init__(self) -> None:
        self._at = self._ask_at = NEVER
        self._gap = ASK_SECONDS  # seconds between the next `here` about a task and the one after it

    @property
    def wake_at(self) -> float:
        return min(self._at, self._ask_at)

    def connected(self, now: float) -> None:
        self._at = now + HERE_SECONDS
        self.wait_for_devices(now)

    def wait_for_devices(self, now: float) -> None:
        """Start to wait for devices now."""
        self._ask_at, self._gap = now + ASK_SECONDS, ASK_SECONDS

    def wait_for_nobody(self) -> None:
        self._ask_at = NEVER

    def stop(self) -> None:
        self._at = self._ask_at = NEVER

    def is_too_early_to_name(self, now: float) -> bool:
        """Return whether a task was sent so recently that no update can be in yet."""
        return self._gap == ASK_SECONDS and now < self._ask_at < NEVER

    def announced(self, now: float) -> None:
        self._at = now + HERE_SECONDS
        if now >= self._ask_at:
            self._ask_at = now + self._gap if self._gap < HERE_SECONDS else NEVER
            self._gap *= 2
