"""Low-rank factors of second moments, and ridge heads whose penalty is chosen by leaving devices out.

x [N, W] are samples, and y [N, C] their targets. All sums are in float64.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from protofleet.methods.maths.heads import solved

REFERENCE_SIZE = (
    513  # A penalty of 1 is one five hundred and thirteenth of the mean squared norm of a sample.
)


@dataclass(frozen=True)
class Moments:
    """The sums of some samples: the Gram matrix, the products with the targets, and the number of samples."""

    gram: Tensor  # [W, W]: sum of x x'
    products: Tensor  # [W, C]: sum of x y'
    samples: float

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.gram + other.gram, self.products + other.products, self.samples + other.samples)

    def __sub__(self, other: Moments) -> Moments:
        return Moments(self.gram - other.gram, self.products - other.products, self.samples - other.samples)

    @property
    def unit(self) -> float:
        """Return the unit c of penalties; it grows with the squared norm of the samples, not with their number."""
        return float(self.gram.trace()) / (REFERENCE_SIZE * max(1.0, self.samples))


def factor(x: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return F [rank, W] and the tail, so that F'F + tail I approximates x'x.

    F has the largest singular values of x times their directions. The tail is the mean, over all W directions, of
    the squares of the other singular values. Rows that are lacking are zero.
    """
    width = x.shape[1]
    found = x.new_zeros(rank, width)
    if not len(x):
        return found, x.new_zeros(1)
    short = torch.linalg.qr(x, mode="r").R if len(x) > width else x
    _, values, directions = torch.linalg.svd(short, full_matrices=False)
    found[: len(values)] = (values.unsqueeze(1) * directions)[:rank]
    return found, values[rank:].square().sum().reshape(1) / width


def ridge(moments: Moments, penalty: float) -> Tensor:
    """Return the head W [W, C] that solves (gram + penalty I) W = products."""
    identity = torch.eye(len(moments.gram), dtype=torch.float64, device=moments.gram.device)
    return solved(moments.gram + penalty * identity, moments.products)


def squared_error(head: Tensor, moments: Moments) -> float:
    """Return the sum of the squared errors of a head [W, C] for targets of 1 and -1, from the sums alone."""
    products = (head * (moments.gram @ head - 2 * moments.products)).sum()
    return float(products) + moments.samples * head.shape[1]


def errors_of_penalties(others: Moments, own: Moments, penalties: Sequence[float]) -> Iterable[float]:
    """Return the squared error on `own` of the head that `others` give, for each penalty above 0."""
    values, directions = torch.linalg.eigh(others.gram)
    products = directions.T @ others.products
    for penalty in penalties:
        divisors = values.clamp(min=0).unsqueeze(1) + penalty
        yield squared_error(directions @ (products / divisors), own)
