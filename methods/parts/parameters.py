"""The parameters of a module under their names in messages, and tables with one number for each parameter.

Buffers such as running statistics, and the parameters of a frozen backbone, are left out.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from protofleet.methods.parts.weights import sent_parameters


def learned_in(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters that are sent, as views, under their names in messages."""
    return {f"weights.{name}": value for name, value in sent_parameters(module).items()}


def count_learned(module: nn.Module) -> int:
    return sum(value.numel() for value in learned_in(module).values())


def parts_of(table: Tensor, module: nn.Module) -> dict[str, Tensor]:
    """Return flat views of a flat table, one for each array of parameters."""
    learned = learned_in(module)
    sizes = [value.numel() for value in learned.values()]
    return dict(zip(learned, torch.split(table, sizes), strict=True))
