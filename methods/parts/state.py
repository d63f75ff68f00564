"""Values in the state of a half: copies of tensors, and names of devices as a tensor."""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch
from torch import Tensor

from protofleet.methods.contract.base import Payload


def snapshot(payload: Payload) -> dict[str, Tensor]:
    """Return copies of the tensors, so that a later change of the module does not change the copies."""
    return {name: payload[name].detach().clone() for name in payload}


def names_to_tensor(names: Sequence[str]) -> Tensor:
    return torch.tensor([*json.dumps(names).encode()], dtype=torch.uint8)


def names_from_tensor(text: Tensor) -> list[str]:
    return list(json.loads(bytes(text.tolist())))
