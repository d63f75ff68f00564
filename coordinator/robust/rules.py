"""The rules that combine the vectors of m devices into one vector, with at most a minority of lying devices.

A rule is fitted with passes over all vectors, slice by slice, and returns a function that combines one slice. The
rows of a slice are ordered by the names of the devices, so the order of arrival has no effect, and of two equal
devices the first name is taken. All sums are in float64: a number of 1e38 has a square far below the largest float64.

rule          result                                                                       passes
mean          sum_i s_i x_i                                                                 0
cap           b + sum_i s_i min(1, 3 r / |x_i - b|) (x_i - b),  r = median_i |x_i - b|       1
clip_median   c + sum_i s_i min(1, r / |x_i - c|) (x_i - c),    r = median_i |x_i - c|       1
trimmed       the mean with shares s_i, number by number, without the f largest and the f smallest numbers   0
median        the median, number by number                                                   0
geometric     the point with the smallest sum of distances to all x_i                        1 for each step
multikrum     the mean of the m - 2f devices that are nearest to their m - f - 2 nearest devices   1

b is the broadcast, c the median number by number, s_i the share of device i, and f the number of lying devices that
is expected. The median of norms is the lower one of the two in the middle, so that a minority cannot raise it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, Protocol, TypeAlias

import torch
from torch import Tensor

from protofleet.coordinator.round.robust import Rule

# Gets the numbers of all devices in a slice [m, n] and of the broadcast [n], and returns the combined numbers [n].
Combine: TypeAlias = Callable[[Tensor, Tensor], Tensor]
FEWEST: Final = 3  # With fewer devices no rule can tell which one lies. Then every rule is `cap`.
CAP: Final = 3.0  # Largest norm of a difference under `cap`, as a multiple of the cohort's median norm.
MOST_STEPS: Final = 64  # Most steps of the geometric median.
CLOSE: Final = 1e-9  # The geometric median ends if no share changes by more.


class Points(Protocol):
    """The vectors of the devices of a cohort."""

    def slices(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each slice: the numbers of all devices [m, n] and of the broadcast [n], in float64."""
        ...


def expected(devices: int, liars: float) -> int:
    """Return f, the number of lying devices that is expected: at least one, but fewer than half."""
    return min(max(1, int(liars * devices)), (devices - 1) // 2)


def expected_by_krum(devices: int, liars: float) -> int:
    """Return f for `multikrum`, which needs 2f + 3 devices if more than one device may lie."""
    return min(expected(devices, liars), max(1, (devices - 3) // 2))


def fitted(rule: Rule, points: Points, shares: Tensor, liars: float) -> Combine:
    """Fit a rule to the vectors of devices with these shares [m], which sum to 1."""
    if len(shares) < FEWEST and rule != "mean":
        return capped_mean(points, shares, liars)
    return FITS[rule](points, shares, liars)


def plain_mean(points: Points, shares: Tensor, liars: float) -> Combine:
    return lambda x, broadcast: weighted(x, shares)


def capped_mean(points: Points, shares: Tensor, liars: float) -> Combine:
    norms = distances(points, lambda x, broadcast: broadcast)
    factors = at_most(norms, CAP * lower_median(norms))
    if bool((factors == 1).all()):
        return plain_mean(points, shares, liars)
    return lambda x, broadcast: broadcast + weighted(x - broadcast, shares * factors)


def clipped_to_median(points: Points, shares: Tensor, liars: float) -> Combine:
    norms = distances(points, lambda x, broadcast: middle(x))
    factors = at_most(norms, lower_median(norms))

    def combine(x: Tensor, broadcast: Tensor) -> Tensor:
        centre = middle(x)
        return centre + weighted(x - centre, shares * factors)

    return combine


def trimmed_mean(points: Points, shares: Tensor, liars: float) -> Combine:
    cut = expected(len(shares), liars)
    kept = slice(cut, len(shares) - cut)

    def combine(x: Tensor, broadcast: Tensor) -> Tensor:
        ordered, order = (part[kept] for part in x.sort(dim=0, stable=True))
        own = shares[order]
        # Rounding must not move a number beyond those that are left.
        return ((own * ordered).sum(dim=0) / own.sum(dim=0)).clamp(ordered[0], ordered[-1])

    return combine


def median(points: Points, shares: Tensor, liars: float) -> Combine:
    return lambda x, broadcast: middle(x)


def geometric_median(points: Points, shares: Tensor, liars: float) -> Combine:
    """Find the geometric median by steps of Weiszfeld, which begin at the median of each number.

    Each step is a mean of the vectors in which a device has the share 1 / (its distance to the last result).
    """
    found = inverse(distances(points, lambda x, broadcast: middle(x)))
    for _ in range(MOST_STEPS):
        last = found
        found = inverse(distances(points, lambda x, broadcast, own=last: weighted(x, own)))  # type: ignore[misc]
        if float((found - last).abs().max()) <= CLOSE:
            break
    return lambda x, broadcast: weighted(x, found)


def multikrum(points: Points, shares: Tensor, liars: float) -> Combine:
    devices = len(shares)
    f = expected_by_krum(devices, liars)
    squares = torch.zeros(devices, devices, dtype=torch.float64)
    for x, _ in points.slices():
        squares += torch.stack([(x - one).square().sum(dim=1) for one in x])
    squares.fill_diagonal_(torch.inf)  # No device is its own neighbour.
    scores = squares.sort(dim=1).values[:, : max(1, devices - f - 2)].sum(dim=1)
    chosen = scores.sort(stable=True).indices[: devices - 2 * f]
    own = torch.zeros_like(shares)
    own[chosen] = shares[chosen]
    own = own / own.sum()
    return lambda x, broadcast: weighted(x, own)


FITS: Final[Mapping[Rule, Callable[[Points, Tensor, float], Combine]]] = {
    "mean": plain_mean,
    "cap": capped_mean,
    "clip_median": clipped_to_median,
    "trimmed": trimmed_mean,
    "median": median,
    "geometric": geometric_median,
    "multikrum": multikrum,
}


def weighted(x: Tensor, shares: Tensor) -> Tensor:
    return (x * shares.unsqueeze(1)).sum(dim=0)


def middle(x: Tensor) -> Tensor:
    """Return the median of each number; of an even number of devices, the mean of the two in the middle."""
    ordered, devices = x.sort(dim=0).values, len(x)
    return (ordered[(devices - 1) // 2] + ordered[devices // 2]) / 2


def lower_median(norms: Tensor) -> float:
    return float(norms.sort().values[(len(norms) - 1) // 2])


def distances(points: Points, to: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Return the distance of each device's vector [m] to a vector that `to` returns, slice by slice."""
    squares: Tensor | float = 0.0
    for x, broadcast in points.slices():
        squares = squares + (x - to(x, broadcast)).square().sum(dim=1)
    return torch.as_tensor(squares, dtype=torch.float64).sqrt()


def at_most(norms: Tensor, most: float) -> Tensor:
    """Return the factors [m] that scale vectors of these norms down to the norm `most`."""
    return torch.where(norms <= most, 1.0, most / norms.clamp(min=torch.finfo(torch.float64).tiny))


def inverse(norms: Tensor) -> Tensor:
    """Return shares [m] that are proportional to 1 / norm.

    A norm of almost 0 counts as a small part of the median norm.
    """
    least = max(1e-12 * lower_median(norms), torch.finfo(torch.float64).tiny)
    found = least / norms.clamp(min=least)
    return found / found.sum()
