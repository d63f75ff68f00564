"""The dimensions of an embedding that each class owns, if only these are sent of a class prototype (TinyProto)."""

from __future__ import annotations

import torch
from torch import Tensor

# Number of places that are compared in each step. At most one place for each prime factor of C could complete a set
# that is equal to a shift of itself, and a C below 65,537 has at most 6 such factors.
CANDIDATES = 16


def owned_dimensions(classes: int, size: int, ones: int, generator: torch.Generator) -> Tensor:
    """Return the dimensions of each class in rising order, [C, ones * step].

    A chunk is `step` = size // C neighbouring dimensions. Each class owns a different set of `ones` < C chunks, and
    each of the C chunks belongs to `ones` classes. The last size - C * step dimensions belong to no class.
    """
    step = size // classes
    with torch.device("cpu"):
        chunks = chunks_of_classes(classes, ones, generator)
        return (chunks.unsqueeze(2) * step + torch.arange(step)).flatten(1)


def chunks_of_classes(classes: int, ones: int, generator: torch.Generator) -> Tensor:
    """Return the chunks of each class in rising order, [C, ones].

    The chunks lie on a circle in random order, and the sets of the classes are the C shifts of one set of places.
    With one chunk for each class, this is a random permutation.
    """
    circle = torch.randperm(classes, generator=generator)
    places = torch.arange(classes).unsqueeze(1) + spread_places(classes, ones, generator)
    return circle[places % classes].sort(dim=1).values


def spread_places(classes: int, ones: int, generator: torch.Generator) -> Tensor:
    """Return `ones` places on a circle of C places, chosen one by one, so that all shifts of them overlap little."""
    chosen = torch.zeros(1, dtype=torch.int64)
    free = 1 + torch.randperm(classes - 1, generator=generator)
    overlap = torch.zeros(
        classes, dtype=torch.int64
    )  # Number of places in common with the shift by 0 to C - 1.
    while len(chosen) < ones:
        gaps = free[:CANDIDATES].unsqueeze(1) - chosen
        both = torch.cat([gaps, -gaps], dim=1) % classes
        after = overlap.expand(len(gaps), -1).scatter_add(1, both, torch.ones_like(both))
        best = int(after.amax(dim=1).argmin())
        chosen, overlap = torch.cat([chosen, free[best : best + 1]]), after[best]
        free = torch.cat([free[:best], free[best + 1 :]]).roll(-CANDIDATES)
    return chosen
