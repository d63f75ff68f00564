"""How long those who have answered the open ask took, and hence how long the rest of a cohort is worth waiting for.

Measured from the ask to the answer's arrival, of this ask alone: a first phase is bounded like any other, and a fleet
that slows down gets more time by itself. Only asks that are put for the first time count: who is asked again has its
answer ready.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field


@dataclass
class Pace:
    factor: float  # so many times the median; 0: it is never known
    floor: float = 0.0  # seconds; less than that is no measure of anybody
    _began: float = 0.0
    _waiting: set[str] = field(default_factory=set)
    _asked: int = 0
    _took: list[float] = field(default_factory=list)

    def asked(self, devices: set[str], now: float) -> None:
        self._began, self._waiting = now, set(devices)
        self._asked, self._took = len(devices), []

    def answered(self, device: str, now: float) -> None:
        if device in self._waiting:
            self._waiting.discard(device)
            self._took.append(now - self._began)

    def seconds(self, quorum: int) -> float:
        """How long such an ask may take; infinite while too few answers have been seen.

        Half of a cohort, and two: or who is quickest, and perhaps has not worked at all, would shut out the others.
        """
        least = max(quorum, (self._asked + 1) // 2, 2)
        if not self.factor or len(self._took) < least:
            return float("inf")
        return max(self.floor, self.factor * statistics.median_high(self._took))
