"""Mixtures of two models: alpha times one model, plus 1 - alpha times the other."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def mixed(own: Tensor, shared: Tensor, alpha: float) -> Tensor:
    """Return alpha own + (1 - alpha) shared; for alpha 0 and 1 it has the bits of one of the two."""
    return torch.lerp(shared, own, alpha)


def moved_alpha(alpha: float, lr: float, parts: Iterable[tuple[Tensor, Tensor, Tensor]]) -> float:
    """Return alpha after a step of gradient descent, limited to 0 and 1 (APFL, eq. 10).

    Each part of the network is (own, shared, gradient of the loss at the mixture). The derivative of the loss
    by alpha is the sum of all products of own - shared and the gradient.
    """
    slope = sum(float(((own - shared).double() * gradient).sum()) for own, shared, gradient in parts)
    return min(max(alpha - lr * slope, 0.0), 1.0)
