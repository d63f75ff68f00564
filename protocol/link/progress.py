"""Report the progress and the remaining time of a long transfer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

REPORT_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class TransferProgress:
    bytes: int
    size: int
    bytes_per_second: float  # average since the first block arrived

    @property
    def seconds_left(self) -> float:
        return (self.size - self.bytes) / self.bytes_per_second


class ProgressReports:
    """The reports of one transfer, made every few seconds while bytes arrive; a quick transfer has none."""

    def __init__(self, size: int, now: float) -> None:
        self._size, self._due = size, now + REPORT_SECONDS
        # Time when the first block arrived, and the number of bytes that had been received at that time. The wait for
        # this block is not part of the measured rate.
        self._first: tuple[float, int] | None = None

    def report(self, bytes_here: int, now: float) -> TransferProgress | None:
        """Return a report if one is due, otherwise None; call this method after every new block."""
        if self._first is None:
            self._first = (now, bytes_here)
        began_at, before = self._first
        if now < self._due or bytes_here <= before or now <= began_at:
            return None
        self._due = now + REPORT_SECONDS
        rate = (bytes_here - before) / (now - began_at)
        return TransferProgress(bytes_here, self._size, rate)
