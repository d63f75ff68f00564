"""The times at which a coordinator announces `here`, with the devices that it waits for.

It announces every minute. While it waits for answers, it also announces 15, 30 and 60 s after the question.
Each of these announcements reaches a device that has lost the question or the announcement before.
"""

from __future__ import annotations

from typing import Final

ASK_SECONDS: Final = 15.0  # from a question to the first `here` that names the devices that have not answered
HERE_SECONDS: Final = 60.0  # a device that hears nothing new for longer knows that messages are held back
NEVER: Final = float("inf")


class HereTimer:
    def __init__(self) -> None:
        self._at = self._ask_at = NEVER
        self._gap = ASK_SECONDS  # from this announcement about a question to the next one

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
        """Return whether a question was asked so recently that no device can have answered it."""
        return self._gap == ASK_SECONDS and now < self._ask_at < NEVER

    def announced(self, now: float) -> None:
        self._at = now + HERE_SECONDS
        if now >= self._ask_at:
            self._ask_at = now + self._gap if self._gap < HERE_SECONDS else NEVER
            self._gap *= 2
