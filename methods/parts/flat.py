"""A module's weights as few flat arrays: all weights of one kind in one array.

A task has a table with the form of each array of the update. If the broadcast contains all arrays of the update, one
row "as sent" is enough. In the later exchanges of a round, the broadcast does not contain the weights. Then the table
needs a row for each array. With a hundred arrays, the table would be longer than many updates. So the weights are
sent as few arrays.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from protofleet.methods.contract.base import Payload
from protofleet.methods.contract.wants import TensorSpec
from protofleet.methods.parts.weights import NEVER_NEGATIVE, named_weights


def flat_weights(module: nn.Module, prefix: str = "weights") -> dict[str, Tensor]:
    """Return copies: `<prefix>.parameters` has all parameters, `<prefix>.<name>` has all buffers named `<name>`."""
    return {
        f"{prefix}.{kind}": torch.cat([value.reshape(-1) for value in values])
        for kind, values in by_kind(module).items()
    }


def flat_wants(module: nn.Module, prefix: str = "weights") -> dict[str, TensorSpec]:
    return {
        f"{prefix}.{kind}": TensorSpec(
            (sum(value.numel() for value in values),),
            str(values[0].dtype).removeprefix("torch."),
            low=0 if kind in NEVER_NEGATIVE else None,
        )
        for kind, values in by_kind(module).items()
    }


def load_flat(module: nn.Module, payload: Payload, prefix: str = "weights") -> None:
    for kind, values in by_kind(module).items():
        parts = torch.split(payload[f"{prefix}.{kind}"], [value.numel() for value in values])
        for value, part in zip(values, parts, strict=True):
            value.copy_(part.view_as(value))


def by_kind(module: nn.Module) -> Mapping[str, list[Tensor]]:
    learned = {name for name, _ in module.named_parameters()}
    found: dict[str, list[Tensor]] = {}
    for name, value in named_weights(module).items():
        kind = "parameters" if name in learned else name.rpartition(".")[2]
        found.setdefault(kind, []).append(value)
    return found
