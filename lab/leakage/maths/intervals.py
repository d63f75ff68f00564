"""A figure with its interval, and the interval of a proportion."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

LEVEL: Final = 0.95  # Level of the intervals that are shown.
STRICT: Final = 0.99  # Level at which a control is judged.
STEPS: Final = 60  # Bisections; the last interval is far below the precision of a float.


@dataclass(frozen=True)
class Figure:
    """A measured figure with its interval. Both ends are NaN if no interval can be computed."""

    value: float
    low: float = math.nan
    high: float = math.nan

    def contains(self, value: float) -> bool:
        """Return whether the interval contains this value; without an interval, the answer is False."""
        return self.low <= value <= self.high


def clopper_pearson(hits: int, trials: int, level: float = LEVEL) -> Figure:
    """Return the proportion hits / trials with its exact interval."""
    if trials <= 0:
        return Figure(math.nan)
    tail = (1 - level) / 2
    low = 0.0 if hits == 0 else _root(lambda p: _at_least(hits, trials, p) - tail)
    high = 1.0 if hits == trials else _root(lambda p: _at_least(hits + 1, trials, p) - (1 - tail))
    return Figure(hits / trials, low, high)


def _at_least(hits: int, trials: int, p: float) -> float:
    """Return the probability of at least this number of hits, if each trial is a hit with the probability p."""
    if not 0 < p < 1:
        return float(p >= 1)
    few = hits <= trials // 2  # The shorter sum is computed.
    terms = math.fsum(_exactly(k, trials, p) for k in (range(hits) if few else range(hits, trials + 1)))
    return 1 - terms if few else terms


def _exactly(hits: int, trials: int, p: float) -> float:
    ways = math.lgamma(trials + 1) - math.lgamma(hits + 1) - math.lgamma(trials - hits + 1)
    return math.exp(ways + hits * math.log(p) + (trials - hits) * math.log1p(-p))


def _root(rising: Callable[[float], float]) -> float:
    low, high = 0.0, 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return (low + high) / 2


# Quantiles of Student's t at 97.5 % and 99.5 % for 1, 2, ... degrees of freedom; from 30 on, for the normal law.
T_LEVEL: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 1.960,
)  # fmt: skip
T_STRICT: Final = (
    63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169, 3.106, 3.055, 3.012, 2.977, 2.947,
    2.921, 2.898, 2.878, 2.861, 2.845, 2.831, 2.819, 2.807, 2.797, 2.787, 2.779, 2.771, 2.763, 2.756, 2.576,
)  # fmt: skip


def student(clusters: int, level: float) -> float:
    """Return the quantile of Student's t for a mean over this number of clusters; it is infinite for one cluster."""
    table = {LEVEL: T_LEVEL, STRICT: T_STRICT}[level]
    return math.inf if clusters < 2 else table[min(clusters - 1, len(table)) - 1]
