"""Read the trace file of a fleet's availability: a CSV file with the columns device, from and until."""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protofleet.protocol.settings.reader import SettingsError

KEY: Final = "availability.trace"
COLUMNS: Final = ("device", "from", "until")

Interval = tuple[float, float]  # Seconds since the run began.


@dataclass(frozen=True)
class Trace:
    """The intervals in which each device is available, in order, by the name that the device has in the file."""

    intervals: Mapping[str, Sequence[Interval]]
    digest: str


def read_trace(path: Path) -> Trace:
    """Read a trace. If the file cannot be used, a SettingsError names the line."""
    try:
        data = path.read_bytes()
        rows = list(csv.reader(io.StringIO(data.decode())))
    except OSError as error:
        raise SettingsError(f"{KEY}: {path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error):
        raise SettingsError(f"{KEY}: {path} is not a CSV file in UTF-8") from None
    if not rows or tuple(map(str.strip, rows[0])) != COLUMNS:
        raise SettingsError(f"{KEY}: the first line of {path} must be {','.join(COLUMNS)}")
    found: dict[str, list[Interval]] = {}
    for device, start, end in numbered(path, rows[1:]):
        found.setdefault(device, []).append((start, end))
    if not found:
        raise SettingsError(f"{KEY}: {path} has no line, so the fleet would never be available")
    return Trace(
        {name: joined(intervals) for name, intervals in found.items()}, hashlib.sha256(data).hexdigest()
    )


def numbered(path: Path, rows: Sequence[Sequence[str]]) -> Iterator[tuple[str, float, float]]:
    for number, row in enumerate(rows, 2):
        if not row:
            continue
        try:
            device, start, end = row[0].strip(), *map(float, row[1:])
        except ValueError:
            device, start, end = "", math.nan, math.nan
        if not device or not 0 <= start < end < math.inf:
            raise SettingsError(
                f"{KEY}: line {number} of {path} is {','.join(row)[:60]!r}, it must be a device and two numbers of "
                "seconds, of which the second is larger, such as a,0,3600"
            )
        yield device, start, end


def joined(intervals: Sequence[Interval]) -> list[Interval]:
    """Return the intervals in order. Intervals that overlap or touch become one."""
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found
