"""Moments of the changes of a model: the mean and the square that a server keeps for each parameter (FedOpt)."""

from __future__ import annotations

import torch
from torch import Tensor


def moving_mean(mean: Tensor, change: Tensor, beta: float) -> Tensor:
    """Return the new first moment, in which the old mean has the weight `beta`."""
    return beta * mean + (1 - beta) * change


def adagrad_square(square: Tensor, change: Tensor) -> Tensor:
    """Return the sum of the squares of all changes."""
    return square + change.square()


def adam_square(square: Tensor, change: Tensor, beta: float) -> Tensor:
    """Return the moving mean of the squares of the changes."""
    return beta * square + (1 - beta) * change.square()


def yogi_square(square: Tensor, change: Tensor, beta: float) -> Tensor:
    """Return the old square after a step towards the new one; the length of the step is (1 - beta) * change^2."""
    return square - (1 - beta) * change.square() * torch.sign(square - change.square())
