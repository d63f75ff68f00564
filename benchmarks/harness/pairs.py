"""Statistics of pairs: the median and spread of ratios, and the verdict about whether a ratio differs from 1."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from benchmarks.harness.measure import Better

COVERAGE = 0.9
# Smallest number of pairs. With fewer pairs, the true median is between the smallest and the largest ratio in less
# than 7 of 8 cases.
FEWEST = 4


class Verdict(Enum):
    WORSE = "worse"
    SAME = "same"
    BETTER = "better"
    UNKNOWN = "too few pairs to say"


@dataclass(frozen=True, slots=True)
class Spread:
    n: int
    median: float
    # The interval from `low` to `high` contains the true median in 9 of 10 cases, for any distribution.
    low: float
    high: float
    first: float  # The first quartile.
    third: float  # The third quartile.


def spread(values: Sequence[float]) -> Spread:
    if not values:
        raise ValueError("a median needs at least one value")
    found = sorted(values)
    skipped = outside_interval(len(found))
    first, _, third = (
        statistics.quantiles(found, n=4, method="inclusive") if len(found) > 1 else (found[0],) * 3
    )
    return Spread(
        len(found), statistics.median(found), found[skipped], found[len(found) - 1 - skipped], first, third
    )


def outside_interval(n: int) -> int:
    """Return how many of n sorted values are below the interval for their median.

    The number of values above the interval is the same.
    """
    skipped, tail = 0, 0.0
    while skipped < n // 2:
        tail += math.comb(n, skipped) / 2**n
        if 1 - 2 * tail < COVERAGE:
            break
        skipped += 1
    return max(0, skipped - 1)


def ratios(these: Sequence[float], others: Sequence[float]) -> list[float]:
    """Return the ratios of the values of each pair. The ratio of 0 to 0 is 1."""
    return [ratio(a, b) for a, b in zip(these, others, strict=True)]


def ratio(a: float, b: float) -> float:
    if b == 0:
        return 1.0 if a == 0 else math.inf
    return a / b


def verdict(of: Spread, better: Better) -> Verdict:
    """Return the verdict on the ratios of this tree's values to the other tree's values."""
    if of.low <= 1.0 <= of.high:
        return Verdict.SAME
    if of.n < FEWEST:
        return Verdict.UNKNOWN
    return Verdict.WORSE if (of.low > 1.0) == (better == "lower") else Verdict.BETTER


def apart(these: Spread, others: Spread, better: Better) -> Verdict:
    """Return the verdict on two series that were not measured in pairs.

    The series differ only if their intervals have no common value.
    """
    if these.low <= others.high and others.low <= these.high:
        return Verdict.SAME
    if min(these.n, others.n) < FEWEST:
        return Verdict.UNKNOWN
    return Verdict.WORSE if (these.low > others.high) == (better == "lower") else Verdict.BETTER
