"""Mixtures of Gaussians: fit them, draw from them, and write them as rows of numbers.

The covariance of a part is `spherical` (one variance), `diag` (a variance for each number) or `full`. A full
covariance is kept as the upper triangle U with the covariance U'U. A covariance that is rounded to float32 may have
no such triangle, but a rounded triangle always has a covariance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from protofleet.methods.contract.liveness import report_progress
from protofleet.methods.maths.grams import triangle_of, triangle_size, upper_of

Covariance: TypeAlias = Literal["spherical", "diag", "full"]

ADDED = 1e-6  # Variance that is added, so that a part with equal samples has a covariance with an inverse.
LEAST_VARIANCE = 1e-8  # Least variance of a part that another party has fitted.
TOLERANCE = 1e-12  # The fit ends when a step changes the mean log-likelihood by less.
MOST_STEPS = 1000
ROOM = 1e-3  # Share by which rounding may change a sum.


@dataclass(frozen=True)
class Mixture:
    """A mixture of K Gaussians in D dimensions."""

    covariance: Covariance
    weights: Tensor  # [K], their sum is 1
    means: Tensor  # [K, D]
    spreads: Tensor  # [K, 1] variances, [K, D] variances, or [K, D (D + 1) / 2] triangles U


def spread_size(covariance: Covariance, size: int) -> int:
    """Return how many numbers the covariance of a part takes, for samples of this size."""
    return {"spherical": 1, "diag": size, "full": triangle_size(size)}[covariance]


def part_size(covariance: Covariance, size: int) -> int:
    """Return how many numbers a part takes: its weight, its mean and its covariance."""
    return 1 + size + spread_size(covariance, size)


def fitted(z: Tensor, parts: int, covariance: Covariance, generator: torch.Generator) -> Mixture:
    """Fit a mixture to samples z [N, D] by expectation maximisation, in float64; N is at least 1.

    It has at most N parts. One part is the mean and the covariance of the samples, without a step.
    """
    samples = z.double()
    shares = shares_by_distance(samples, min(parts, len(samples)), generator)
    before = -math.inf
    for _ in range(MOST_STEPS):
        report_progress()
        found = mixture_of_shares(samples, shares, covariance)
        if len(found.weights) == 1:
            break
        densities = log_densities(samples, found)
        totals = densities.logsumexp(dim=1, keepdim=True)
        shares, after = (densities - totals).exp(), float(totals.mean())
        if abs(after - before) < TOLERANCE:
            break
        before = after
    return found


def shares_by_distance(z: Tensor, parts: int, generator: torch.Generator) -> Tensor:
    """Return shares [N, K] of 0 and 1: each sample belongs to the nearest of K samples that are drawn.

    A sample is drawn with a probability in proportion to its squared distance from those drawn before.
    """
    nearest = z.new_ones(len(z))
    distances = []
    for _ in range(parts):
        chances = nearest if bool((nearest > 0).any()) else torch.ones_like(nearest)
        chosen = z[torch.multinomial(chances.cpu(), 1, generator=generator).to(z.device)]
        distances.append((z - chosen).square().sum(dim=1))
        nearest = torch.stack(distances).amin(dim=0)
    places = torch.stack(distances).argmin(dim=0)
    return torch.eye(parts, dtype=z.dtype, device=z.device)[places]


def mixture_of_shares(z: Tensor, shares: Tensor, covariance: Covariance) -> Mixture:
    """Return the most likely mixture if the samples z [N, D] belong to the parts with these shares [N, K]."""
    totals = shares.sum(dim=0).clamp(min=torch.finfo(z.dtype).eps)
    means = (shares.T @ z) / totals.unsqueeze(1)
    pairs = zip(means, shares.T, totals, strict=True)
    spreads = torch.stack([spread(z - mean, own / total, covariance) for mean, own, total in pairs])
    return Mixture(covariance, totals / totals.sum(), means, spreads)


def spread(gaps: Tensor, shares: Tensor, covariance: Covariance) -> Tensor:
    """Return the numbers of the covariance of gaps [N, D] to a mean, with shares [N] whose sum is 1."""
    if covariance == "full":
        identity = torch.eye(gaps.shape[1], dtype=gaps.dtype, device=gaps.device)
        matrix = gaps.T @ (shares.unsqueeze(1) * gaps) + ADDED * identity
        return triangle_of(torch.linalg.cholesky(matrix, upper=True))
    variances = shares @ gaps.square() + ADDED
    return variances if covariance == "diag" else variances.mean(dim=0, keepdim=True)


def log_densities(z: Tensor, mixture: Mixture) -> Tensor:
    """Return log(weight) + log(density) [N, K] of samples for each part, without a constant."""
    found = []
    for weight, mean, numbers in zip(mixture.weights, mixture.means, mixture.spreads, strict=True):
        gaps = z - mean
        if mixture.covariance == "full":
            U = upper_of(numbers, z.shape[1])
            deviations = U.diagonal()
            gaps = torch.linalg.solve_triangular(U, gaps, upper=True, left=False)
        else:
            deviations = numbers.expand(z.shape[1]).sqrt()
            gaps = gaps / deviations
        found.append(weight.log() - deviations.log().sum() - gaps.square().sum(dim=1) / 2)
    return torch.stack(found, dim=1)


def drawn(mixture: Mixture, number: int, generator: torch.Generator) -> Tensor:
    """Return this number of samples [N, D] of the mixture."""
    # The draws are made on the CPU, so they have the same bits on all machines.
    size, place = mixture.means.shape[1], mixture.means.device
    weights = mixture.weights.cpu()
    parts = torch.multinomial(weights, number, replacement=True, generator=generator).to(place)
    noise = torch.randn(number, size, generator=generator, dtype=mixture.means.dtype).to(place)
    if mixture.covariance != "full":
        return mixture.means[parts] + mixture.spreads.sqrt()[parts] * noise
    for part, numbers in enumerate(mixture.spreads):
        noise[parts == part] = noise[parts == part] @ upper_of(numbers, size)
    return mixture.means[parts] + noise


def row_of(mixture: Mixture, parts: int) -> Tensor:
    """Return a mixture as one row of numbers: the weights, the means and the covariances.

    A row has this number of parts. Parts that are lacking have the weight 0, the mean 0 and the variance 1.
    """
    lacking, size = parts - len(mixture.weights), mixture.means.shape[1]
    one = torch.ones_like(mixture.spreads[0])
    if mixture.covariance == "full":
        one = triangle_of(torch.eye(size, dtype=one.dtype, device=one.device))
    weights = torch.cat([mixture.weights, one.new_zeros(lacking)])
    means = torch.cat([mixture.means, one.new_zeros(lacking, size)])
    return torch.cat([weights, means.flatten(), mixture.spreads.flatten(), one.repeat(lacking)])


def mixture_of(row: Tensor, parts: int, size: int, covariance: Covariance) -> Mixture:
    """Return the mixture that `row_of` has written, for samples of this size."""
    lengths = [parts, parts * size, parts * spread_size(covariance, size)]
    weights, means, spreads = torch.split(row, lengths)
    return Mixture(covariance, weights, means.reshape(parts, size), spreads.reshape(parts, -1))


def problem_with_mixture(found: Mixture, most: float = math.inf) -> str:
    """Return why this is no mixture of samples, with value and limit; "" if it is one.

    `most` is the largest mean of the squared norms of the samples of a part.
    """
    if (least := float(found.weights.min())) < 0:
        return f"a weight of {least:g}, below 0"
    if abs((total := float(found.weights.sum())) - 1) > ROOM:
        return f"weights with a sum of {total:g}, which must be 1"
    size = found.means.shape[1]
    if found.covariance == "full":
        triangles = upper_of(found.spreads, size)
        if (least := float(triangles.diagonal(dim1=1, dim2=2).min())) < math.sqrt(LEAST_VARIANCE):
            return f"a covariance that is not positive definite: its triangle has {least:g} on the diagonal"
        variances = found.spreads.square().sum(dim=1)
    else:
        if (least := float(found.spreads.min())) < LEAST_VARIANCE:
            return f"a variance of {least:g}, below {LEAST_VARIANCE:g}"
        variances = found.spreads.expand(-1, size).sum(dim=1)
    squares = float((found.means.square().sum(dim=1) + variances).max())
    limit = most * (1 + ROOM)
    return f"a part with a mean squared norm of {squares:g}, above {limit:g}" if squares > limit else ""
