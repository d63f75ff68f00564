"""A linear head that a server half trains on features."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from protofleet.methods.contract.base import Samples
from protofleet.methods.parts.local import LocalHyper, train
from protofleet.methods.parts.optimizers import AdamW

DECAY = 0.01  # AdamW's weight decay, as in PyTorch.


def trained_head(rows: Samples, classes: int, hyper: LocalHyper, generator: torch.Generator) -> Tensor:
    """Return a head [C, D + 1] that AdamW trains on features [N, D] from zeros; its last number is the bias.

    A class without features has no part in the training, and its row stays zero.
    """
    head = nn.Linear(rows.x.shape[1], classes, dtype=rows.x.dtype, device=rows.x.device)
    for parameter in head.parameters():
        nn.init.zeros_(parameter)
    absent = rows.y.bincount(minlength=classes) == 0

    def objective(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(head(x).masked_fill(absent, -math.inf), y)

    optimizer = AdamW(head.parameters(), hyper.lr, DECAY)
    train(head, rows, objective, hyper, generator, optimizers=[optimizer])
    return torch.cat([head.weight, head.bias.unsqueeze(1)], dim=1).detach()
