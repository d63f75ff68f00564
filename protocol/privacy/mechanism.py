"""Limit a vector, round it to a grid of whole numbers, and add noise: the one mechanism of all releases.

The grid is so fine that the noise has a deviation of 32,768 steps, for every budget and every vector. Rounding can
lengthen the change that one unit makes, so the vector is limited to a little less than the clip:

  device   The vector of a device is compared with zeros, which rounding does not change. Its own rounding moves each
           of d numbers by at most half a step, so the vector is limited to clip - sqrt(d) / 2 steps.
  sample   Two sums, with and without a sample, are both rounded, so a sample is limited to clip - sqrt(d) steps. The
           caller has limited each sample to the clip, and the sum is scaled down to this limit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from protofleet.protocol.privacy.accountant import RARE, Noise, log_ratio_of_a_sum, noise_multiplier
from protofleet.protocol.privacy.noise import RandomWords, Whole, discrete_gaussian

Unit: TypeAlias = Literal["device", "sample"]

SIGMA: Final = float(1 << 15)  # Deviation of the noise in steps of the grid.
# Part of the clip that the rounding may take. With more, the vector has too many numbers for the budget.
MOST_ROUNDING: Final = 0.5


@dataclass(frozen=True, slots=True)
class PrivacyBudget:
    """The epsilon and delta that a number of equal releases may give away together."""

    epsilon: float
    delta: float
    releases: int

    def multiplier(self, numbers: int, parties: int = 1) -> float:
        """Return sigma / sensitivity of each release of so many numbers, or raise ValueError if there is none."""
        one = Noise(SIGMA, SIGMA, numbers, discrete_gaussian(SIGMA / math.sqrt(parties)).distance, parties)
        log_ratio = self.releases * one.log_ratio
        spent = self.releases * (numbers * parties * one.distance + RARE)
        delta = (self.delta - (1 + math.exp(min(700.0, self.epsilon + 1))) * spent) / math.exp(log_ratio)
        # The epsilon of the releases is rounded up, and must not pass the budget even by the last bit.
        epsilon = self.epsilon * (1 - 1e-12) - log_ratio
        if epsilon <= 0 or delta <= 0:
            raise ValueError(
                f"epsilon is {self.epsilon:g} and delta {self.delta:g}, which is too little for {self.releases} "
                f"releases of {numbers} numbers"
            )
        return noise_multiplier(epsilon, delta, self.releases)


@dataclass(frozen=True, slots=True)
class Mechanism:
    """The mechanism of one kind of release: the length of the vector, its clip, and the noise of the budget."""

    unit: Unit
    clip: float  # Largest change that one unit makes to the vector, after the rounding.
    numbers: int  # Count of numbers in the vector.
    multiplier: float  # sigma / sensitivity.
    parties: int = 1  # Number of devices that add the noise together; each adds 1 / parties of its variance.

    def __post_init__(self) -> None:
        # With parts of some hundred steps, the bound of Kairouz, Liu and Steinke is smaller than any float. So the
        # ledger does not need to know how many parts a noise has.
        assert log_ratio_of_a_sum(SIGMA, self.parties) == 0, f"{self.parties} parts are too small for a sum"
        if self.rounding > MOST_ROUNDING * self.clip:
            raise ValueError(
                f"a vector of {self.numbers} numbers has too much noise for a grid: rounding it would take "
                f"{self.rounding / self.clip:.0%} of the clip; allow a larger epsilon or fewer rounds"
            )

    @property
    def step(self) -> float:
        """Return the distance of two points of the grid."""
        return self.clip * self.multiplier / SIGMA

    @property
    def rounding(self) -> float:
        """Return how much the rounding can lengthen the change that one unit makes."""
        return math.sqrt(self.numbers) * self.step / (2 if self.unit == "device" else 1)

    @property
    def limit(self) -> float:
        """Return the largest change that one unit may make before the rounding."""
        # Floats of 64 bits may be wrong by less than this.
        return (self.clip - self.rounding) * (1 - 1e-9)

    @property
    def noise(self) -> Noise:
        """Return what the accountant needs to know about one release."""
        distance = self.parties * discrete_gaussian(self.own_sigma).distance
        return Noise(SIGMA, SIGMA / self.multiplier, self.numbers, distance, self.parties)

    @property
    def own_sigma(self) -> float:
        """Return the deviation of the noise that one device adds, in steps."""
        return SIGMA / math.sqrt(self.parties)

    @property
    def deviation(self) -> float:
        """Return the deviation of the noise on each number, in the unit of the vector."""
        return SIGMA * self.step

    @property
    def share(self) -> float:
        """Return the factor of a vector before the rounding: below 1 for sums over samples, and otherwise 1."""
        return self.limit / self.clip if self.unit == "sample" else 1.0

    def release(self, vector: NDArray[np.float64], words: RandomWords | None = None) -> Whole:
        """Return the vector on the grid with noise; `words` is given only by tests."""
        return self.whole(vector) + self.draw(words)

    def whole(self, vector: NDArray[np.float64]) -> Whole:
        """Return the vector on the grid without noise. Under `unit = "device"`, limit its length first."""
        if vector.shape != (self.numbers,):
            raise ValueError(f"the vector has the shape {vector.shape}, it must be ({self.numbers},)")
        kept = limited(vector, self.limit) if self.unit == "device" else vector * self.share
        return on_grid(kept, self.step)

    def draw(self, words: RandomWords | None = None) -> Whole:
        """Return the noise that one device adds, in steps."""
        return discrete_gaussian(self.own_sigma).draw(self.numbers, words)

    def values(self, released: Whole | NDArray[np.float64]) -> NDArray[np.float64]:
        """Return a released vector, or a sum of such vectors, in the unit of the vector."""
        return released.astype(np.float64) * self.step / self.share


def limited(vector: NDArray[np.float64], limit: float) -> NDArray[np.float64]:
    """Return the vector, scaled to the length `limit` if it is longer; raise ValueError if it is not finite."""
    largest = float(np.abs(vector).max(initial=0.0))
    if not math.isfinite(largest):
        raise ValueError("the vector has a number that is not finite")
    if largest == 0:
        return vector
    # Scaled first, because the square of a large number would be infinite.
    length = float(np.linalg.norm(vector / largest)) * largest
    return vector if length <= limit else vector / largest * (limit / (length / largest))


def on_grid(vector: NDArray[np.float64], step: float) -> Whole:
    """Return the nearest point of the grid in steps, with ties to even numbers."""
    if not np.isfinite(vector).all():
        raise ValueError("the vector has a number that is not finite")
    return np.rint(vector / step).astype(np.int64)
