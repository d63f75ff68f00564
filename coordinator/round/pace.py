"""Compute the time at which the next round may begin.

After each round there is a pause. The policy may also limit the hours of the day in which rounds begin. This
module does not read a clock: the time of the loop and the Unix time are arguments.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

HOURS: Final = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")
DAY_SECONDS: Final = 86_400.0
# Seconds between two checks of the wall clock, because a person may set this clock.
LOOK_SECONDS: Final = 60.0


@dataclass(frozen=True)
class Hours:
    """A time window of each day, in minutes since midnight. The window may span midnight."""

    start: int
    end: int

    def holds(self, minute: int) -> bool:
        if self.start < self.end:
            return self.start <= minute < self.end
        return minute >= self.start or minute < self.end


def hours_of(text: str) -> Hours | None:
    """Read policy.hours; return None if the setting is empty, which means all day."""
    if not text:
        return None
    found = HOURS.fullmatch(text)
    if found is None:
        raise ValueError(
            f'hours is {text[:40]!r}, it must be one window HH:MM-HH:MM, such as "22:00-06:00", or "" for all day'
        )
    hours = Hours(60 * int(found[1]) + int(found[2]), 60 * int(found[3]) + int(found[4]))
    if hours.start == hours.end:
        raise ValueError(
            f'hours is {text!r}, but the end of a window must differ from its start; "" means all day'
        )
    return hours


def local_time(unix: float) -> datetime:
    return datetime.fromtimestamp(unix)


@dataclass
class Pace:
    """The earliest time at which the next round may begin.

    The hours of the policy are the hours of the local clock, also on days on which daylight saving time
    begins or ends. On such a day a window is one hour shorter or longer. If the clock skips the hour that
    contains a window, there is no such window on that day.
    """

    pause_seconds: float = 0.0
    hours: Hours | None = None
    local: Callable[[float], datetime] = local_time
    ended: tuple[int, float] = (0, 0.0)  # The last round that has ended, and the Unix time at which it ended.
    wall: float = 0.0  # Unix time of the event that is being handled
    _resting_until: float = field(default=0.0)  # End of the pause on the clock of the event loop.

    def round_ended(self, round: int, now: float) -> float | None:
        """Begin the pause after a round; if a replay ends the same round again, go on with the earlier pause.

        Return the Unix time of the end of the round if this time must be saved, else None.
        """
        if not self.pause_seconds:
            return None
        known = self.ended[0] == round
        at = self.ended[1] if known else self.wall
        rest = min(max(at + self.pause_seconds - self.wall, 0.0), self.pause_seconds)
        self.ended, self._resting_until = (round, at), now + rest
        return None if known else at

    def seconds_left(self, now: float) -> float:
        """Return the seconds until the next round may begin; 0 if it may begin now."""
        rest = max(self._resting_until - now, 0.0)
        return rest + self._until_hours(self.wall + rest)

    def _until_hours(self, unix: float) -> float:
        """Return the seconds until the window of hours opens; 0 if it is open.

        The search goes minute by minute, because a day on which the clock is changed is shorter or longer
        than 24 hours.
        """
        if self.hours is None or self.hours.holds(_minute(self.local(unix))):
            return 0.0
        at = unix - unix % 60
        for _ in range(2 * 24 * 60):
            at += 60
            if self.hours.holds(_minute(self.local(at))):
                break
        return at - unix


def _minute(local: datetime) -> int:
    return 60 * local.hour + local.minute


def opening_words(unix: float, now: float, local: Callable[[float], datetime] = local_time) -> str:
    """Format a time; if it is within the next 24 hours, give only the hour and the minute."""
    at = local(unix)
    return f"{at:%H:%M}" if unix - now < DAY_SECONDS else f"{at:%H:%M on %d %B}"
