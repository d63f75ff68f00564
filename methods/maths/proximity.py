"""Terms that hold a model, or its features, near what the server sent."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def proximal(model: nn.Module, anchor: Mapping[str, Tensor]) -> Tensor:
    """Half the squared distance of the parameters, not buffers, to `anchor` (FedProx, eq. 2, without mu)."""
    gaps = [(w - anchor[name]).square().sum() for name, w in model.named_parameters()]
    return 0.5 * torch.stack(gaps).sum()


def prototype_mse(z: Tensor, y: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """Mean squared gap to the prototype of the own class, over B x D elements (FedProto's code).

    Samples of a class without prototype are no part of the mean; if all are, it is 0.
    """
    held = known[y]
    gaps = (z[held] - prototypes[y[held]]).square()
    return gaps.sum() / max(gaps.numel(), 1)
