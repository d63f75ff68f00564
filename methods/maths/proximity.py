"""Loss terms that keep a model, or its features, near the values that the server sent."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def proximal(model: nn.Module, anchor: Mapping[str, Tensor]) -> Tensor:
    """Return half the squared distance of the parameters to `anchor` (FedProx, eq. 2, without mu).

    Buffers are left out.
    """
    gaps = [(w - anchor[name]).square().sum() for name, w in model.named_parameters()]
    return 0.5 * torch.stack(gaps).sum()


def linear(model: nn.Module, slopes: Mapping[str, Tensor]) -> Tensor:
    """Return the sum of products of parameters and slopes, which adds the slopes to the gradient.

    Parameters without slopes are left out.
    """
    products = [(w * slopes[name]).sum() for name, w in model.named_parameters() if name in slopes]
    return torch.stack(products).sum()


def prototype_mse(z: Tensor, y: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """Return the mean squared difference between a feature and its class's prototype, as in FedProto's code.

    The mean is over B x D numbers. Samples of a class without a prototype are not in the mean. If no sample is left,
    the result is 0.
    """
    held = known[y]
    gaps = (z[held] - prototypes[y[held]]).square()
    return gaps.sum() / max(gaps.numel(), 1)
