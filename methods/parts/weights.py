"""The weights of a module, with buffers, under their names in messages: `<prefix>.<state_dict key>`.

The weights of a frozen backbone are left out, because every party has them. `keys` selects keys of the state dict.
Without `keys`, all keys are selected.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from protofleet.methods.contract.averages import Averaged
from protofleet.methods.contract.base import Payload
from protofleet.methods.contract.plan import Plan
from protofleet.methods.contract.received import ReceivedArrays, WrongArraysError
from protofleet.methods.contract.wants import TensorSpec, like
from protofleet.methods.nets.base import Net, frozen_backbones

WEIGHTS: Final = ("weights",)  # The kinds that METHOD declares for weights.
# The phases that METHOD declares as averaged if the devices send only weights, in "train".
MEAN_OF_WEIGHTS: Final = {"train": Averaged(arrays=WEIGHTS)}
NEVER_NEGATIVE = ("running_var", "num_batches_tracked")


def weights_of(
    module: nn.Module, prefix: str = "weights", keys: Collection[str] | None = None
) -> dict[str, Tensor]:
    """Return the weights of a module as views, not as copies.

    So a broadcast needs no memory for a second model. The numbers of the views change when the module is trained.
    """
    return {f"{prefix}.{name}": value.detach() for name, value in named_weights(module, keys).items()}


def first_weights(plan: Plan) -> dict[str, Tensor]:
    """Return the weights of the run's network before any training; all parties have the same."""
    return weights_of(plan.model())


def load_weights(
    module: nn.Module, payload: Payload, prefix: str = "weights", keys: Collection[str] | None = None
) -> None:
    """Load the weights under this prefix; if the payload has no such weights, do nothing."""
    start = f"{prefix}."
    found = {name.removeprefix(start) for name in payload if name.startswith(start)}
    own = named_weights(module, keys)
    if not found:
        return
    if found != set(own):
        missing, strange = sorted(set(own) - found), sorted(found - set(own))
        if missing:
            raise WrongArraysError(f"{start}{missing[0]} is one of {len(missing)} missing arrays")
        raise WrongArraysError(
            f"{start}{strange[0][:64]} does not belong to this network, and {len(strange) - 1} further arrays "
            "do not either"
        )
    # Load one array at a time. An array may be on the disk, or may be a mean that is computed when it is read.
    for name, value in own.items():
        loaded = payload[start + name]
        if loaded.shape != value.shape:
            raise WrongArraysError(
                f"{start}{name} has the shape {tuple(loaded.shape)}, but the network needs {tuple(value.shape)}"
            )
        if isinstance(payload, ReceivedArrays) and loaded.dtype != value.dtype:
            raise WrongArraysError(f"{start}{name} is {loaded.dtype}, but the network needs {value.dtype}")
        value.copy_(loaded)


def weight_wants(
    module: nn.Module, prefix: str = "weights", keys: Collection[str] | None = None
) -> dict[str, TensorSpec]:
    """Return the specifications that a reply with the weights of this module must meet.

    Running variances must not be negative: one negative variance would make every device's scores NaN.
    """
    wants = like(weights_of(module, prefix, keys))
    norms = [name for name, part in module.named_modules() if isinstance(part, _BatchNorm)]
    for name in (".".join(filter(None, (prefix, n, buffer))) for n in norms for buffer in NEVER_NEGATIVE):
        if name in wants:
            wants[name] = replace(wants[name], low=0)
    return wants


def keys_of_norms(module: nn.Module) -> frozenset[str]:
    """Return the keys of all arrays of batch norms.

    Batch norms are found by their type, because in many networks the names of layers do not show the type.
    """
    norms = {name for name, part in module.named_modules() if isinstance(part, _BatchNorm)}
    return frozenset(key for key in module.state_dict() if key.rpartition(".")[0] in norms)


def keys_of_head(model: Net) -> frozenset[str]:
    return frozenset(f"head.{key}" for key in model.head.state_dict())


def named_weights(module: nn.Module, keys: Collection[str] | None = None) -> dict[str, Tensor]:
    same = tuple(f"{name}." for name, _ in frozen_backbones(module))
    return {
        key: value
        for key, value in module.state_dict().items()
        if (keys is None or key in keys) and not key.startswith(same)
    }


def sent_parameters(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters that are sent, as views: without buffers, and without a frozen backbone."""
    learned = {name for name, _ in module.named_parameters()}
    return {name: value.detach() for name, value in named_weights(module).items() if name in learned}


def torch_device_of(module: nn.Module) -> torch.device:
    """Return the torch device on which a module computes.

    Tensors that are combined with the outputs of the module must be on the same torch device.
    """
    return next(module.parameters()).device
