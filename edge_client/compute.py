"""Where a device computes."""

from __future__ import annotations

from dataclasses import replace

import torch

from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.data.shard import Shard, TensorSamples
from protofleet.methods.contract.torch_setup import compute_deterministically
from protofleet.protocol.settings.reader import SettingsError


def set_torch(settings: DeviceSettings) -> torch.device:
    """As many threads as are wished for, the same bits every time, and where to compute."""
    place = compute_place(settings.compute)
    if settings.threads:
        torch.set_num_threads(settings.threads)
    compute_deterministically(strict=False)
    return place


def compute_place(choice: str) -> torch.device:
    if choice == "cuda" and not torch.cuda.is_available():
        raise SettingsError('compute is "cuda", but torch sees no CUDA device here; use "auto" or "cpu"')
    return torch.device("cuda" if choice != "cpu" and torch.cuda.is_available() else "cpu")


def moved(shard: Shard, place: torch.device) -> Shard:
    if place.type == "cpu":
        return shard

    def move(part: TensorSamples) -> TensorSamples:
        return TensorSamples(part.x.to(place), part.y.to(place))

    return replace(shard, train=move(shard.train), validation=move(shard.validation), test=move(shard.test))
