"""When a coordinator announces `here`, with the devices that it waits for.

Every minute; and while it waits for answers, 15, 30 and 60 s after the question: each of these reaches a device that
has lost the question, or the announcement before.
"""

from __future__ import annotations

from typing import Final

ASK_SECONDS: Final = 15.0  # after a question was asked, the devices that have not answered are named to all
HERE_SECONDS: Final = 60.0  # a device that hears nothing new for longer knows that something holds it back
NEVER: Final = float("inf")


class HereTimer:
    def __init__(self) -> None:
        self._at = self._ask_at = NEVER
        self._gap = ASK_SECONDS  # from this announcement about a question to the next

    @property
    def wake_at(self) -> float:
        return min(self._at, self._ask_at)

    def connected(self, now: float) -> None:
        self._at = now + HERE_SECONDS
        self.wait_for_devices(now)

    def wait_for_devices(self, now: float) -> None:
        """From now on devices are waited for."""
        self._ask_at, self._gap = now + ASK_SECONDS, ASK_SECONDS

    def wait_for_nobody(self) -> None:
        self._ask_at = NEVER

    def stop(self) -> None:
        self._at = self._ask_at = NEVER

    def is_too_early_to_name(self, now: float) -> bool:
        """A question was asked just now: nobody can have answered it."""
        return self._gap == ASK_SECONDS and now < self._ask_at < NEVER

    def announced(self, now: float) -> None:
        self._at = now + HERE_SECONDS
        if now >= self._ask_at:
            self._ask_at = now + self._gap if self._gap < HERE_SECONDS else NEVER
            self._gap *= 2
