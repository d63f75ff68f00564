"""When a coordinator says that it is here, and whom it waits for.

Every minute; and while it waits for answers, 15, 30 and 60 s after the question: each of these finds whoever has lost
the question, or the word before.
"""

from __future__ import annotations

from typing import Final

ASK_SECONDS: Final = 15.0  # after a question was put, whom it waits for is said to all
HERE_SECONDS: Final = 60.0  # a device that hears nothing new for longer knows that something holds it back
NEVER: Final = float("inf")


class Here:
    def __init__(self) -> None:
        self._at = self._ask_at = NEVER
        self._gap = ASK_SECONDS  # from this word about a question to the next

    @property
    def wake_at(self) -> float:
        return min(self._at, self._ask_at)

    def connected(self, now: float) -> None:
        self._at = now + HERE_SECONDS
        self.asked(now)

    def asked(self, now: float) -> None:
        """Somebody is waited for from now on."""
        self._ask_at, self._gap = now + ASK_SECONDS, ASK_SECONDS

    def nobody(self) -> None:
        """Is waited for."""
        self._ask_at = NEVER

    def ends(self) -> None:
        self._at = self._ask_at = NEVER

    def too_early(self, now: float) -> bool:
        """To name anybody: a question was put just now."""
        return self._gap == ASK_SECONDS and now < self._ask_at < NEVER

    def said(self, now: float) -> None:
        self._at = now + HERE_SECONDS
        if now >= self._ask_at:
            self._ask_at = now + self._gap if self._gap < HERE_SECONDS else NEVER
            self._gap *= 2
