"""How close recovered arrays are to the true ones: features, samples and label distributions.

Each measure has a control in which pairs are shuffled. If a shuffled pair is as close as a true one, nothing was
recovered.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from protofleet.lab.leakage.maths.intervals import LEVEL, Figure, student

Numbers: TypeAlias = NDArray[np.float64]
Labels: TypeAlias = NDArray[np.int64]

DRAWS: Final = 600
RANGE: Final = 2.0  # Pixels are from -1 to 1.
CLOSEST: Final = 1e-20  # Smallest mean squared error; it gives 206 dB.
PENALTIES: Final = tuple(10.0**power for power in range(-4, 5))


def r2(found: Numbers, true: Numbers) -> float:
    """Return the share of the variance of the true rows that the found rows explain."""
    spread = float(np.square(true - true.mean(0)).sum())
    return 1 - float(np.square(found - true).sum()) / spread if spread else math.nan


def cosine(found: Numbers, true: Numbers) -> float:
    """Return the mean cosine between the rows."""
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(true, axis=1)
    return float((np.sum(found * true, axis=1) / np.where(lengths > 0, lengths, 1)).mean())


def relative_error(found: Numbers, true: Numbers) -> float:
    """Return the length of the difference, divided by the length of the true rows."""
    return float(np.linalg.norm(found - true) / max(float(np.linalg.norm(true)), CLOSEST))


def nearest(rows: Numbers, candidates: Numbers) -> Labels:
    """Return the index of the nearest candidate of each row."""
    squares = np.square(candidates).sum(1)[None, :] - 2 * rows @ candidates.T
    found: Labels = squares.argmin(1)
    return found


def total_variation(found: Numbers, true: Numbers) -> float:
    """Return half of the summed differences of two distributions, which are scaled to a sum of 1."""
    return float(np.abs(found / found.sum() - true / true.sum()).sum() / 2)


def clustered(values: Numbers, clusters: Labels, seed: int = 0, level: float = LEVEL) -> Figure:
    """Return the mean of the values with an interval from a bootstrap over the clusters."""
    return clustered_ratio(values, np.ones(len(values)), clusters, seed, level)


def clustered_r2(
    found: Numbers, true: Numbers, clusters: Labels, seed: int = 0, level: float = LEVEL
) -> Figure:
    """Return R2 with an interval from a bootstrap over the clusters; the mean of the true rows stays the same."""
    missed, spread = (np.square(rows).sum(1) for rows in (found - true, true - true.mean(0)))
    one = clustered_ratio(missed, spread, clusters, seed, level)
    return Figure(1 - one.value, 1 - one.high, 1 - one.low)


def clustered_ratio(
    above: Numbers, below: Numbers, clusters: Labels, seed: int = 0, level: float = LEVEL
) -> Figure:  # fmt: skip
    """Return sum(above) / sum(below) with an interval from a bootstrap over the clusters."""
    names, places = np.unique(clusters, return_inverse=True)
    sums = [np.bincount(places, weights=values) for values in (above, below)]
    drawn = np.random.default_rng(seed).multinomial(
        len(names), np.full(len(names), 1 / len(names)), size=DRAWS
    )
    found = (drawn @ sums[0]) / (drawn @ sums[1])
    value = float(sums[0].sum() / sums[1].sum())
    half = student(len(names), level) * float(found.std())
    return Figure(value, value - half, value + half)


def psnr(found: Numbers, true: Numbers) -> Numbers:
    """Return the peak signal-to-noise ratio of each row of pixels, in dB."""
    errors = np.square(found - true).mean(1)
    ratios: Numbers = 10 * np.log10(RANGE**2 / np.maximum(errors, CLOSEST))
    return ratios


@dataclass(frozen=True)
class Ridge:
    """A linear map from rows to targets."""

    matrix: Numbers  # [W + 1, T]; the last row is the constant.

    def __call__(self, rows: Numbers) -> Numbers:
        found: Numbers = with_constant(rows) @ self.matrix
        return found


def with_constant(rows: Numbers) -> Numbers:
    return np.hstack([rows, np.ones((len(rows), 1))])


def fitted_ridge(rows: Numbers, targets: Numbers, seed: int = 0) -> Ridge:
    """Fit a ridge map on four fifths of the rows, with the penalty that is the best one on the other fifth."""
    order = np.random.default_rng(seed).permutation(len(rows))
    held, rest = order[: len(rows) // 5], order[len(rows) // 5 :]
    scale = float(np.square(rows).sum(1).mean()) or 1.0
    maps = ridges(rows[rest], targets[rest], [penalty * scale for penalty in PENALTIES])
    errors = [float(np.square(one(rows[held]) - targets[held]).mean()) for one in maps]
    return maps[int(np.argmin(errors))]


def ridges(rows: Numbers, targets: Numbers, penalties: Sequence[float]) -> list[Ridge]:
    """Return the ridge map of each penalty. The constant is not penalised, because the means are removed first."""
    centre, mean = rows.mean(0), targets.mean(0)
    x, t = rows - centre, targets - mean
    values, directions = np.linalg.eigh(x.T @ x)
    products = directions.T @ (x.T @ t)
    weights = [directions @ (products / (np.maximum(values, 0) + one)[:, None]) for one in penalties]
    return [Ridge(np.vstack([one, mean - centre @ one])) for one in weights]
