"""A straight line through samples that shows whether a figure grows with the rounds, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

SPANS = 20  # Neighbouring samples are alike, so the line goes through the means of this many equal spans.
T_95 = 2.101  # Student's t for SPANS - 2 degrees of freedom, two-sided.


@dataclass(frozen=True)
class Slope:
    mean: float
    per_round: float
    margin: float  # The margin of per_round at 95 %.

    @property
    def flat(self) -> bool:
        return abs(self.per_round) <= self.margin

    def surely_over(self, grown: float, rounds: float) -> bool:
        """Return whether the lower end of the margin means a growth of more than `grown` in these rounds."""
        return (self.per_round - self.margin) * rounds > grown


def slope(rounds: Sequence[float], values: Sequence[float], warm: float = 0.1) -> Slope:
    """Return the slope of the values.

    `warm` is the share of the rounds at the beginning that is left out, because caches fill in that time.
    """
    first = rounds[0] + warm * (rounds[-1] - rounds[0])
    pairs = [(x, y) for x, y in zip(rounds, values, strict=True) if x >= first]
    x, y = spans(pairs)
    mx, my = sum(x) / len(x), sum(y) / len(y)
    width = sum((a - mx) ** 2 for a in x)
    if len(x) < 3 or width == 0:
        raise ValueError(f"{len(pairs)} samples are too few for a slope")
    b = sum((a - mx) * (c - my) for a, c in zip(x, y, strict=True)) / width
    rest = sum((c - my - b * (a - mx)) ** 2 for a, c in zip(x, y, strict=True))
    return Slope(my, b, T_95 * math.sqrt(rest / (len(x) - 2) / width))


def spans(pairs: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Return the means of equal shares of the samples."""
    cuts = [round(i * len(pairs) / SPANS) for i in range(SPANS + 1)]
    shares = [pairs[a:b] for a, b in zip(cuts, cuts[1:], strict=False) if b > a]
    return [sum(p[0] for p in s) / len(s) for s in shares], [sum(p[1] for p in s) / len(s) for s in shares]
