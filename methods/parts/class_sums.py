"""Sums of features for each class, with a limit for the part of one sample, and what is made of sums with noise.

A feature z of class c adds (z in row c, C / 2 to the count of c, and, if wanted, the products z z' / C), where z is
first scaled to a length of at most C. The upper triangle of z z' has its products off the diagonal times sqrt(2), so
its length is |z|^2. So a sample adds a vector of at most C sqrt(1 + 1/4), or C sqrt(2 + 1/4) with the products.

Sums with noise may be sums of no samples: counts are below 0, or a matrix of products has negative eigenvalues.
`NoisySums.means` returns the nearest means that samples can have. Products keep their negative eigenvalues until the
server has added those of all devices, because on each device alone, a correction would add to the sum as often as
there are devices. `solvable` then makes the sum positive. These functions look at nothing but the sums with noise and
the stated number of samples, so they give away nothing more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeAlias

import torch
from torch import Tensor

from protofleet.methods.contract.private_sums import SumNoise
from protofleet.methods.maths.grams import symmetric_of, triangle_of, triangle_size

ToArrays: TypeAlias = Callable[["NoisySums", int], dict[str, Tensor]]

COUNT: Final = 0.5  # Length of the count of a sample, as a multiple of the clip.


@dataclass(frozen=True)
class ClassSums:
    """The sums over the samples of a device: features and counts of each class, and products of features."""

    clip: float  # Largest length of the features of one sample (C).
    classes: int
    width: int  # Count of numbers in a feature.
    products: bool  # True if the sum has the products of features.

    @property
    def numbers(self) -> int:
        return self.classes * (self.width + 1) + (triangle_size(self.width) if self.products else 0)

    @property
    def sensitivity(self) -> float:
        return self.clip * math.sqrt(1 + COUNT**2 + self.products)

    @property
    def largest(self) -> float:
        return self.clip  # A product off the diagonal is at most C / sqrt(2).

    def vector(self, z: Tensor, y: Tensor) -> Tensor:
        """Return the sums [L] in float64."""
        rows = z.double()
        rows = rows * (self.clip / rows.norm(dim=1, keepdim=True).clamp(min=self.clip))
        sums = rows.new_zeros(self.classes, self.width).index_add_(0, y, rows)
        counts = y.bincount(minlength=self.classes).to(rows) * (COUNT * self.clip)
        parts = [sums.reshape(-1), counts]
        if self.products:
            parts.append(triangle_of(rows.T @ rows) * self._roots.to(rows) / self.clip)
        return torch.cat(parts)

    @cached_property
    def _roots(self) -> Tensor:
        """Return the factors of the triangle: 1 on the diagonal, sqrt(2) off it."""
        matrix = torch.full((self.width, self.width), math.sqrt(2), dtype=torch.float64)
        return triangle_of(matrix.fill_diagonal_(1))

    def split(self, vector: Tensor) -> NoisySums:
        """Return the parts of a vector of sums with noise."""
        cut = self.classes * self.width
        counts = vector[cut : cut + self.classes] / (COUNT * self.clip)
        products = None
        if self.products:
            triangle = vector[cut + self.classes :] / self._roots.to(vector) * self.clip
            products = symmetric_of(triangle, self.width)
        return NoisySums(vector[:cut].reshape(self.classes, self.width), counts, products)


@dataclass(frozen=True)
class NoisySums:
    """Sums with noise."""

    sums: Tensor  # [C, D]
    counts: Tensor  # [C]
    products: Tensor | None  # [D, D]

    def means(self, least: int, samples: int, longest: float) -> tuple[Tensor, Tensor]:
        """Return the means [C, D] and whole counts [C]; a class with a count below `least` has neither.

        The counts add up to at most `samples`, and no mean is longer than `longest`.
        """
        whole = self.counts.round().clamp(min=0, max=max(0, samples)).long()
        if (total := int(whole.sum())) > samples:
            whole = (whole * samples).div(total, rounding_mode="floor")
        held = whole >= max(1, least)
        means = self.sums / self.counts.clamp(min=1).unsqueeze(1)
        means = means * (longest / means.norm(dim=1, keepdim=True).clamp(min=longest))
        return torch.where(held.unsqueeze(1), means, 0.0), torch.where(held, whole, 0)


@dataclass(frozen=True)
class ReleasedSums:
    """The sums of a method that a device releases with noise, and the arrays of the update that are made of them."""

    of_classes: ClassSums
    arrays: ToArrays  # function that gets the sums with noise and the stated number of samples

    @property
    def numbers(self) -> int:
        return self.of_classes.numbers

    @property
    def sensitivity(self) -> float:
        return self.of_classes.sensitivity

    @property
    def largest(self) -> float:
        return self.of_classes.largest

    def vector(self, z: Tensor, y: Tensor) -> Tensor:
        return self.of_classes.vector(z, y)

    def payload(self, vector: Tensor, samples: int) -> dict[str, Tensor]:
        return self.arrays(self.of_classes.split(vector), samples)

    def samples(self, vector: Tensor) -> int:
        return max(1, round(float(self.of_classes.split(vector).counts.sum())))


def noise_edge(noise: SumNoise, width: int, devices: int) -> float:
    """Return the largest eigenvalue that noise alone has in the sum of the products [width, width] of the devices.

    A number off the diagonal has sqrt(2) times less noise than the diagonal (see `ClassSums`). The eigenvalues of
    such a matrix fill the interval from -edge to edge (Wigner's semicircle).
    """
    return noise.clip * noise.deviation * math.sqrt(2 * width * devices)


def solvable(G: Tensor, edge: float) -> Tensor:
    """Return a sum of products with noise for a ridge head: no eigenvalue below 0, and then a penalty.

    The penalty is half of `edge`, so it follows from the plan and gives away nothing. In directions in which the
    samples have less than the noise, it keeps the weights of the head small.
    """
    values, vectors = torch.linalg.eigh(G)
    found: Tensor = (vectors * (values.clamp(min=0) + edge / 2)) @ vectors.T
    return found


def problem_with_noisy_products(G: Tensor, noise: SumNoise, samples: float, most: float) -> str:
    """Return why a mean of products cannot be one of samples with noise, with value and limit; "" if it can.

    `most` is the largest squared length of a sample.
    """
    # The noise of all n (n + 1) / 2 numbers has a length of about n / sqrt(2) deviations.
    room = 2 * noise.clip * noise.deviation * (len(G) + 8) / max(1.0, samples)
    norm, limit = float(G.norm()), most + room
    return f"gram has a norm of {norm:g}, above {limit:g}" if norm > limit else ""
