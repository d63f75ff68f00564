"""Lengths, angles and distances of rows [B, D] and [C, D], with gradients that stay finite at zero."""

from __future__ import annotations

import math

import torch
from torch import Tensor

SHORTEST = 1e-12  # A vector shorter than this counts as a vector without direction.


def unit(x: Tensor) -> Tensor:
    """Return rows of length 1.

    A zero row stays zero and has a finite gradient. The gradient of x / |x| would not be finite there.
    """
    norms = x.norm(dim=-1, keepdim=True)
    return x / torch.where(norms > SHORTEST, norms, 1.0)


def same_norm(x: Tensor) -> Tensor:
    """Return rows [B, D] of norm sqrt(D), so that their numbers have the mean square 1; a zero row stays zero."""
    return unit(x) * math.sqrt(x.shape[-1])


def squared_distances(x: Tensor, centres: Tensor) -> Tensor:
    """Return squared distances, [B, D], [C, D] -> [B, C].

    The distances are computed centre by centre, because an array [B, C, D] is too large for a small device.
    The code of FedSA and FedTGP computes x^2 - 2 x c + c^2 instead. This form loses all digits of a small distance,
    and its result may be negative.
    """
    return torch.stack([(x - centre).square().sum(dim=-1) for centre in centres], dim=-1)


def distances(x: Tensor, centres: Tensor) -> Tensor:
    """Return Euclidean distances, [B, C].

    A small number is added, so that the gradient is finite if a sample is equal to its centre.
    """
    return (squared_distances(x, centres) + 1e-12).sqrt()


def margins(points: Tensor) -> Tensor:
    """Return the distance of each prototype or anchor to its nearest neighbour, [C] (FedLSA, fig. 1)."""
    return distances(points, points).masked_fill(diagonal(points), math.inf).min(dim=1).values


def diagonal(rows: Tensor) -> Tensor:
    return torch.eye(len(rows), dtype=torch.bool, device=rows.device)


def at_least_float32(x: Tensor) -> Tensor:
    """Return x in float32 or wider.

    In float16, the small constants that keep lengths and distances above 0 would be rounded to 0.
    """
    return x.to(torch.promote_types(x.dtype, torch.float32))
