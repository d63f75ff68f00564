"""Check boots and epochs, which are Unix times, against a clock that is known to be set.

If a boot or an epoch far ahead of the true time were accepted, the correct values that follow would look old.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

# Seconds that a boot or an epoch may be ahead of the clock. A wrong time zone or a clock that is set by hand causes a
# smaller difference.
MOST_AHEAD: Final = 86_400.0
# The beginning of 2023; a clock that shows an earlier time is not believed.
NEVER_SET: Final = 1_672_531_200.0


def ahead(number: int, now: float, since: float = NEVER_SET) -> float:
    """Return the seconds by which `number` is ahead of the clock. `number` is a boot or an epoch.

    Return 0 if `number` is at most a day ahead. Also return 0 if `now` is before `since`, because then the clock
    was not set.
    """
    return number - now if now >= since and number - now > MOST_AHEAD else 0.0


@dataclass
class Clock:
    """The clock of one party.

    `since` is a time in the past, for example the time when a record was made. A clock that shows a time before
    `since` is wrong. At each reading, `since` becomes at least the time of the reading minus one day. So a clock
    that was set back by more than a day is not believed.
    """

    now: Callable[[], float] = time.time
    since: float = NEVER_SET

    @property
    def is_believable(self) -> bool:
        return self._reading() >= self.since

    def after(self, seen: int) -> Clock:
        """Return a copy of this clock for a party whose clock has shown the time `seen` before.

        The copy is not trusted while it shows a time that is more than a day before `seen`.
        """
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
