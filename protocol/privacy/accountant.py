"""Compute what a series of Gaussian releases gives away, in closed form.

A release adds Gaussian noise of deviation sigma to a vector that one unit changes by at most `sensitivity`. Any
number of such releases, also if each one is chosen after the earlier ones, gives away as much as one release with
mu = sqrt(sum (sensitivity / sigma)^2) (Dong, Roth, Su, "Gaussian differential privacy", 2022), which is

    delta(epsilon) = Phi(mu / 2 - epsilon / mu) - e^epsilon Phi(-mu / 2 - epsilon / mu)     (Balle, Wang, 2018)

There is no credit for a cohort that is drawn at random, because the coordinator draws it and knows it.

The noise of protocol.privacy.noise is a discrete Gaussian from a table. Three small terms cover the difference:

  rounding   Compared with a Gaussian that is rounded to whole numbers, which costs nothing, the ratio of the
             probabilities of one number y is between e^(-1 / (24 sigma^2)) and e^(y^2 / (24 sigma^4)).
  sum        The ratio of the probabilities of a sum of discrete Gaussians and of one discrete Gaussian, by
             `log_ratio_of_a_sum`.
  table      The distance of the table to the law, for each number of the vector.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

# Probability that the sum of squares of the noise is larger than the accountant assumes.
RARE: Final = 1e-30
LARGEST_EPSILON: Final = 1e4  # An epsilon above this number is reported as infinite.


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise of one release, in steps of the grid."""

    sigma: float  # Deviation of the noise on each number that no colluding device knows.
    sensitivity: float  # Largest length of the change that one unit can make to the vector.
    numbers: int  # Count of numbers in the vector.
    distance: float = 0.0  # Distance of the sampler's table to its law, for one number.
    parties: int = 1  # Number of discrete Gaussians whose sum is the noise.

    def __post_init__(self) -> None:
        for name in ("sigma", "sensitivity"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}, it must be above 0 and finite")

    @property
    def log_ratio(self) -> float:
        """Return the part of epsilon that covers the rounding and the sum, but for a probability of RARE."""
        ln = -math.log(RARE)
        squares = (
            self.numbers + 2 * math.sqrt(self.numbers * ln) + 2 * ln
        )  # Laurent, Massart, 2000: chi-square
        squares *= (1 + 1 / (2 * self.sigma)) ** 2  # The rounding moves each number by at most half a step.
        rounding = (self.numbers + squares) / (24 * self.sigma**2) + 6 * self.numbers * _dual(self.sigma)
        return rounding + 2 * self.numbers * log_ratio_of_a_sum(self.sigma, self.parties)


def _dual(sigma: float) -> float:
    """Return a third of a bound of the relative error of sqrt(2 pi) sigma as the sum of exp(-y^2 / (2 sigma^2))."""
    return math.exp(-2 * (math.pi * sigma) ** 2)


def log_ratio_of_a_sum(sigma: float, parties: int) -> float:
    """Return the largest log ratio between a sum of discrete Gaussians and one discrete Gaussian of deviation sigma.

    The sum has `parties` equal terms. The bound is that of Kairouz, Liu and Steinke, "The distributed discrete
    Gaussian mechanism", 2021: 5 sum_k exp(-2 pi^2 s^2 k / (k + 1)), where s is the deviation of one term and k runs
    from 1 to parties - 1. It needs s >= 1/2.
    """
    one = sigma / math.sqrt(parties)
    if one < 0.5:
        raise ValueError(f"the deviation of one of {parties} terms is {one:g} steps, it must be at least 0.5")
    scale = 2 * (math.pi * one) ** 2
    return 5 * math.fsum(math.exp(-scale * k / (k + 1)) for k in range(1, parties))


def mu_of(releases: Iterable[Noise]) -> float:
    """Return the mu of the one Gaussian release that gives away as much as all these releases."""
    return math.sqrt(math.fsum((one.sensitivity / one.sigma) ** 2 for one in releases))


def delta_of(mu: float, epsilon: float) -> float:
    """Return the smallest delta of a Gaussian release for this epsilon."""
    if mu == 0:
        return 0.0
    low = epsilon / mu - mu / 2
    second = math.exp(epsilon + _log_tail(epsilon / mu + mu / 2))
    return max(0.0, math.erfc(low / math.sqrt(2)) / 2 - second)


def _log_tail(x: float) -> float:
    """Return the log of the probability that a standard Gaussian is above x."""
    if x < 30:
        return math.log(math.erfc(x / math.sqrt(2)) / 2)
    return -x * x / 2 - math.log(x * math.sqrt(2 * math.pi)) + math.log1p(-1 / x**2 + 3 / x**4)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the smallest epsilon of a Gaussian release for this delta, rounded up; inf if it is above 10,000."""
    if delta_of(mu, 0.0) <= delta:
        return 0.0
    if not delta > 0 or delta_of(mu, LARGEST_EPSILON) > delta:
        return math.inf
    return _root(lambda epsilon: delta_of(mu, epsilon) <= delta, 0.0, LARGEST_EPSILON)


def _root(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Return the smallest number for which `holds` is true, rounded up; it is false at `low` and true at `high`."""
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def epsilon_of(releases: Iterable[Noise], delta: float) -> float:
    """Return the epsilon that all these releases together give away at this delta; inf if there is none."""
    every = list(releases)
    if not every:
        return 0.0
    mu = mu_of(every)
    rough = gaussian_epsilon(mu, delta)
    log_ratio = math.fsum(one.log_ratio for one in every)
    if rough + log_ratio > 700:
        return math.inf
    # The distances of the tables and the rare events are part of delta: once for one data set, and e^epsilon times
    # for the other.
    spent = math.fsum(one.numbers * one.distance + RARE for one in every)
    left = (delta - (1 + math.exp(rough + log_ratio + 1)) * spent) / math.exp(log_ratio)
    epsilon = gaussian_epsilon(mu, left)
    return epsilon + log_ratio if epsilon <= rough + 1 else math.inf


def noise_multiplier(epsilon: float, delta: float, releases: int = 1) -> float:
    """Return sigma / sensitivity of each of so many equal releases that together give away epsilon at delta."""
    if not (epsilon > 0 and 0 < delta < 1):
        raise ValueError(f"epsilon is {epsilon} and delta {delta}, they must be above 0, and delta below 1")
    # With sigma / sensitivity = s, one release has mu = 1 / s, and so many of them have sqrt(releases) / s.
    return math.sqrt(releases) * _root(lambda s: delta_of(1 / s, epsilon) <= delta, 1e-3, 1e9)
