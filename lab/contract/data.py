"""Check a user's data: equal requests give equal data, the shape is right, and a network can learn from them."""

from __future__ import annotations

from dataclasses import replace

import torch

from protofleet.edge_client.data.settings import DataSettings
from protofleet.edge_client.data.shard import Shard, load_shard
from protofleet.lab.contract.worlds import require
from protofleet.methods.plugins.allowed import PlugIns

PARTS = 3


def shards_of(settings: DataSettings, allowed: PlugIns) -> dict[str, Shard]:
    """Return the data of the devices of a small federation.

    If the data are wrong, a DataError is raised. Its message describes what the author of the data must change.
    """
    shares = (replace(settings, part=i, parts=PARTS) for i in range(PARTS))
    return {f"device-{i}": load_shard(share, allowed) for i, share in enumerate(shares)}


def are_the_same_again(settings: DataSettings, allowed: PlugIns) -> None:
    """Require that two loads of the same data give the same samples.

    A device that restarts must train on the same data as before.
    """
    one, again = (load_shard(replace(settings, parts=PARTS), allowed) for _ in range(2))
    for split in ("train", "validation", "test"):
        a, b = getattr(one, split), getattr(again, split)
        require(
            torch.equal(a.x, b.x) and torch.equal(a.y, b.y),
            f"two equal requests give different {split} samples; compute all random numbers from request.seed and "
            "request.part",
        )


def shares_differ(shards: dict[str, Shard]) -> None:
    first, *others = shards.values()
    for other in others:
        same = first.train.x.shape == other.train.x.shape and torch.equal(first.train.x, other.train.x)
        require(not same, "two shares are the same samples; give request.part of request.parts")


def agree_on_classes(shards: dict[str, Shard]) -> None:
    first, *others = shards.values()
    for other in others:
        require(
            (first.classes, first.names) == (other.classes, other.names),
            f"two shares have other classes: {first.names or first.classes} and {other.names or other.classes}",
        )
