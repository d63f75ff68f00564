"""How long answers to a phase take lately, and hence how long the rest of a cohort is worth waiting for.

Measured from the ask to the answer's arrival, late answers too, or a deadline that is too short would never learn
that it is. Only asks that were put for the first time count: who is asked again has its answer ready.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field
from typing import Final

ANSWERS: Final = 64  # of each phase that are remembered
ASKS: Final = 4  # the newest ones; answers to older ones are no measure of today

Ask = tuple[int, str]  # round, phase


@dataclass
class Pace:
    factor: float  # so many times the median; 0: it is never known
    _took: dict[str, deque[float]] = field(default_factory=dict)  # phase -> seconds
    _asks: dict[Ask, tuple[float, set[str]]] = field(default_factory=dict)  # when, and who has not answered

    def asked(self, ask: Ask, devices: set[str], now: float) -> None:
        self._asks[ask] = (now, set(devices))
        while len(self._asks) > ASKS:
            del self._asks[next(iter(self._asks))]

    def answered(self, ask: Ask, device: str, now: float) -> None:
        began, waiting = self._asks.get(ask, (now, set()))
        if device in waiting:
            waiting.discard(device)
            self._took.setdefault(ask[1], deque(maxlen=ANSWERS)).append(now - began)

    def seconds(self, phase: str, least: int) -> float:
        """How long such an ask may take; infinite while fewer than `least` answers have been seen."""
        took = self._took.get(phase, ())
        if not self.factor or len(took) < max(1, least):
            return float("inf")
        return self.factor * statistics.median(took)
