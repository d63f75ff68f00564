"""Give each device of an experiment a board, a line, and the times in which it is available."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from protofleet.coordinator.round.pace import DAY_SECONDS, Hours, hours_of
from protofleet.lab.virtual.profiles import BoardProfile, LineProfile, ReadProfiles
from protofleet.lab.virtual.trace import KEY, Interval
from protofleet.lab.virtual.worked import MeasuredWork
from protofleet.protocol.settings.reader import SettingsError

ALWAYS: Final[Interval] = (0.0, math.inf)


@dataclass(frozen=True)
class Availability:
    """The times in which a device is available: hours of each day, or a list of intervals."""

    hours: Hours | None = None
    begins_after: float = 0.0  # Seconds from midnight to the beginning of the run.
    intervals: Sequence[Interval] = (ALWAYS,)

    def next(self, now: float) -> Interval | None:
        """Return the interval that holds `now`, or else the next one; None if there is none."""
        if self.hours is not None:
            return self._of_hours(self.hours, now)
        return next((one for one in self.intervals if one[1] > now), None)

    def _of_hours(self, hours: Hours, now: float) -> Interval:
        length = 60.0 * ((hours.end - hours.start) % (24 * 60))
        # The window that began at this second of the day or before; it may have ended.
        since = (now + self.begins_after - 60.0 * hours.start) % DAY_SECONDS
        start = now - since
        return (
            (start, start + length) if since < length else (start + DAY_SECONDS, start + DAY_SECONDS + length)
        )


@dataclass(frozen=True)
class VirtualDevice:
    """The board, the line and the times of one device."""

    board_name: str
    board: BoardProfile
    line_name: str
    line: LineProfile
    availability: Availability
    work: MeasuredWork | None  # The seconds that real devices have measured; None without them.

    @property
    def words(self) -> str:
        return f"board {self.board_name}, line {self.line_name} (virtual)"


def virtual_fleet(
    read: ReadProfiles, devices: Sequence[str], seed: int, quorum: int
) -> dict[str, VirtualDevice]:
    """Return the devices of a fleet by name. The same profiles, names and seed give the same fleet."""
    profiles, rng = read.profiles, random.Random(f"protofleet fleet {seed}")
    boards = drawn({name: board.share for name, board in profiles.boards.items()}, len(devices), rng)
    lines = drawn({name: line.share for name, line in profiles.lines.items()}, len(devices), rng)
    times = availabilities(read, len(devices), quorum)
    return {
        device: VirtualDevice(
            board, profiles.boards[board], line, profiles.lines[line], time, read.work.get(board)
        )
        for device, board, line, time in zip(devices, boards, lines, times, strict=True)
    }


def drawn(shares: Mapping[str, float], number: int, rng: random.Random) -> list[str]:
    """Return a name for each device, in a random order. The number of each name is its share, rounded."""
    exact = {name: share * number for name, share in shares.items()}
    counts = {name: math.floor(value + 1e-9) for name, value in exact.items()}
    # Devices that are left go to the names with the largest remainders.
    rest = sorted(exact, key=lambda name: (counts[name] - exact[name], name))
    for name in rest[: number - sum(counts.values())]:
        counts[name] += 1
    found = [name for name in shares for _ in range(counts[name])]
    rng.shuffle(found)
    return found


def availabilities(read: ReadProfiles, number: int, quorum: int) -> list[Availability]:
    profiles, trace = read.profiles, read.trace
    if trace is None:
        return [Availability(hours_of(profiles.availability.days), profiles.begins_after)] * number
    traces = list(trace.intervals.values())
    found = [traces[i % len(traces)] for i in range(number)]
    if (most := most_at_once(found)) < quorum:
        raise SettingsError(
            f"{KEY}: at most {most} of {number} devices are available at the same time, so the fleet is never "
            f"available for a round: policy.quorum is {quorum}; lower it, or take another trace"
        )
    return [Availability(intervals=intervals) for intervals in found]


def most_at_once(found: Sequence[Sequence[Interval]]) -> int:
    """Return the largest number of devices that are available at the same time."""
    changes = sorted(
        change for intervals in found for start, end in intervals for change in ((start, 1), (end, -1))
    )
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most
