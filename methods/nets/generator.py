"""FedGen's generator of embeddings, which makes a possible input of a network's head from noise and a class.

noise + classes -> hidden, BatchNorm and ReLU -> embedding. With 32 noise values, 100 classes, and 512 values in the
hidden layer and in the embedding, the generator has 331,264 parameters.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protofleet.methods.nets.base import initialised_from


class Generator(nn.Module):
    """A network that makes embeddings: eps [B, noise], y [B] -> [B, size]."""

    def __init__(self, noise: int, classes: int, hidden: int, size: int) -> None:
        super().__init__()
        self.noise, self.classes = noise, classes
        # There is no bias, because BatchNorm would cancel it. The gradient of a bias would consist only of rounding
        # errors, and Adam would follow these errors.
        first = nn.Linear(noise + classes, hidden, bias=False)
        self.layers = nn.Sequential(first, nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, size))

    def forward(self, eps: Tensor, y: Tensor) -> Tensor:
        made: Tensor = self.layers(torch.cat([eps, F.one_hot(y, self.classes).to(eps.dtype)], dim=1))
        return made


def embedding_generator(noise: int, classes: int, hidden: int, size: int, *, seed: int = 0) -> Generator:
    with initialised_from(seed):
        return Generator(noise, classes, hidden, size)
