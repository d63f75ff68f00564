"""Signs of past updates, means of masked numbers, and weights that grow with distances (FedHEAL)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypeAlias

import torch
from torch import Tensor

# An update of a parameter, the mask of the numbers that count, and the weight of the device.
Masked: TypeAlias = tuple[Tensor, Tensor, float]


def keeps_sign(update: Tensor, rises: Tensor, rounds: int, threshold: float) -> Tensor:
    """Return a mask of the numbers whose sign was frequent in past updates.

    `rises` counts the past updates that were 0 or more, of `rounds` in all. The share of the past updates with
    the sign of this update must be above `threshold`.
    """
    same = torch.where(update >= 0, rises, rounds - rises)
    # Whole numbers are compared. The small number is added because 0.29 * 100 is slightly below 29.
    return same > math.floor(threshold * rounds + 1e-9)


def masked_mean(pieces: Iterable[Masked]) -> Tensor:
    """Return the weighted mean over the devices whose mask has the number; 0 if no mask has it."""
    parts = iter(pieces)
    update, mask, weight = next(parts)
    total = torch.where(mask, update.double(), 0.0) * weight
    share = mask.double() * weight
    for update, mask, weight in parts:
        total.add_(torch.where(mask, update.double(), 0.0), alpha=weight)
        share.add_(mask.double(), alpha=weight)
    return torch.where(share > 0, total / share, 0.0)


def next_step(step: float, distance: float, total: float, beta: float) -> float:
    """Return the moving mean of a device's share of the sum of all distances."""
    return (1 - beta) * step + (beta * distance / total if total else 0.0)
