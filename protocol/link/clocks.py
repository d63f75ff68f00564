"""Boots and epochs are times. One far ahead of a clock that was set would make all later ones look old."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

MOST_AHEAD: Final = 86_400.0  # seconds: time zones and clocks that are set by hand are less wrong
NEVER_SET: Final = 1_672_531_200.0  # the year 2023: a clock that shows an earlier time is not believed


def ahead(number: int, now: float, since: float = NEVER_SET) -> float:
    """By how many seconds, where that is too many and the clock was set."""
    return number - now if now >= since and number - now > MOST_AHEAD else 0.0


@dataclass
class Clock:
    """A party's own. `since`: it is later than that, or the clock is wrong; a record's first second, for example.

    Its own earlier readings count too: where it goes back by more than a day, it is wrong, or was.
    """

    now: Callable[[], float] = time.time
    since: float = NEVER_SET

    @property
    def is_believable(self) -> bool:
        return self._reading() >= self.since

    def after(self, seen: int) -> Clock:
        """One that has shown `seen` before: where it shows a day less, it is wrong and not believed."""
        return replace(self, since=max(self.since, seen - MOST_AHEAD))

    def ahead(self, number: int) -> float:
        return ahead(number, self._reading(), self.since)

    def _reading(self) -> float:
        reading = self.now()
        self.since = max(self.since, NEVER_SET)
        if reading >= self.since:
            self.since = max(self.since, reading - MOST_AHEAD)
        return reading


def days(seconds: float) -> str:
    return f"{seconds / 86_400:,.1f} days"
