"""The choice between the GPU and the CPU for a device's computation."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.data.shard import Shard, TensorSamples
from protofleet.methods.contract.plan import Network, Plan
from protofleet.methods.contract.torch_setup import compute_deterministically
from protofleet.methods.parts.local import BATCH
from protofleet.protocol.settings.reader import SettingsError

CPU: Final = torch.device("cpu")
# If a training batch has fewer operations for each core than this number, the cores are as fast as a GPU: see
# docs/gpu.md.
FLOPS_PER_CORE: Final = 50_000_000
FLOPS_PER_WEIGHT: Final = 2  # One multiplication and one addition.
# Work of a training step, as a multiple of the forward pass's work. The backward pass alone is twice as much work.
BACK_AND_FORTH: Final = 3


def set_torch(settings: DeviceSettings) -> torch.device:
    """Set torch's number of threads and its deterministic mode, and return the processor: the GPU or the CPU."""
    place = compute_place(settings.compute)
    if settings.threads:
        torch.set_num_threads(settings.threads)
    compute_deterministically(strict=False)
    return place


def gpu_pays(plan: Plan, network: Network | None = None, cores: int = 0) -> bool:
    """Return whether a training batch of this plan is so much work that a GPU is faster than `cores` CPU cores.

    If `cores` is 0, use the number of cores that this process may use.

    A GPU takes some milliseconds even for the batch of a small network, because it starts hundreds of kernels. The
    function counts operations and does not measure time. A measured time would depend on the other programs of the
    machine, so a restarted device might choose the GPU in place of the CPU. Then the update for a repeated task would
    differ from the first update in some bits.
    """
    enough, own = FLOPS_PER_CORE * (cores or available_cores()), getattr(plan.settings(), "batch", None)
    # A method that trains nothing has no setting `batch`, and makes only forward passes.
    batch = BATCH if own is None else BACK_AND_FORTH * int(own)
    with torch.device("meta"):  # Tensors on the meta device take no memory.
        parameters = sum(weights.numel() for weights in plan.model(network).parameters())
    # Each sample uses each weight at least once. If this work alone is enough, the operations need not be counted.
    if FLOPS_PER_WEIGHT * parameters * batch >= enough:
        return True
    return flops_of(plan.model(network), plan.input_shape.axes) * batch >= enough


def flops_of(model: nn.Module, sample: Sequence[int]) -> int:
    """Count the operations of all linear and convolutional layers in the forward pass of one sample."""
    found = 0

    def count(layer: nn.Module, given: object, result: torch.Tensor) -> None:
        nonlocal found
        weight = layer.weight
        assert isinstance(weight, torch.Tensor)
        found += FLOPS_PER_WEIGHT * weight.numel() * result.numel() // len(weight)

    for layer in model.modules():
        if isinstance(layer, nn.Linear | _ConvNd):
            layer.register_forward_hook(count)
    with torch.no_grad():
        model.eval()(torch.zeros(1, *sample))
    return found


def available_cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def compute_place(choice: str, plan: Plan | None = None, network: Network | None = None) -> torch.device:
    """Return the GPU or the CPU, as the setting `choice` demands.

    If the choice is "auto" and a plan is given, return the CPU if the GPU would not train the network faster.
    """
    if choice == "cuda" and not torch.cuda.is_available():
        raise SettingsError('compute is "cuda", but torch sees no CUDA device here; use "auto" or "cpu"')
    if choice == "cpu" or not torch.cuda.is_available():
        return CPU
    return CPU if choice == "auto" and plan and not gpu_pays(plan, network) else torch.device("cuda")


def moved(shard: Shard, place: torch.device) -> Shard:
    if place.type == "cpu":
        return shard

    def move(part: TensorSamples) -> TensorSamples:
        return TensorSamples(part.x.to(place), part.y.to(place))

    return replace(shard, train=move(shard.train), validation=move(shard.validation), test=move(shard.test))
