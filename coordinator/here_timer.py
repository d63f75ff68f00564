"""The times at which a coordinator sends `here`, which names the devices that it waits for.

The coordinator sends `here` every minute. While it waits for updates, it also sends `here` 15, 30 and 60 s
after the task. So a device that did not receive the task, or that did not receive an earlier `here`, learns
that the coordinator waits for it.
"""

from __future__ import annotations

from typing import Final

# Seconds from a task to the first `here` that names the devices whose updates are missing.
ASK_SECONDS: Final = 15.0
# Seconds between two `here`. A device that waits much longer for the next `here` concludes that its messages are
# withheld.
HERE_SECONDS: Final = 60.0
NEVER: Final = float("inf")


class HereTimer:
    def __init__(self) -> None:
        self._at = self._ask_at = NEVER
        # Seconds that will pass between the next `here` about the open task and the `here` after it.
        self._gap = ASK_SECONDS

    @property
    def wake_at(self) -> float:
        return min(self._at, self._ask_at)

    def connected(self, now: float) -> None:
        self._at = now + HERE_SECONDS
        self.wait_for_devices(now)

    def wait_for_devices(self, now: float) -> None:
        """Record that the coordinator waits for devices from now on."""
        self._ask_at, self._gap = now + ASK_SECONDS, ASK_SECONDS

    def wait_for_nobody(self) -> None:
        self._ask_at = NEVER

    def stop(self) -> None:
        self._at = self._ask_at = NEVER

    def is_too_early_to_name(self, now: float) -> bool:
        """Return whether a task was sent so recently that a missing update does not mean a lost message."""
        return self._gap == ASK_SECONDS and now < self._ask_at < NEVER

    def announced(self, now: float) -> None:
        self._at = now + HERE_SECONDS
        if now >= self._ask_at:
            self._ask_at = now + self._gap if self._gap < HERE_SECONDS else NEVER
            self._gap *= 2
