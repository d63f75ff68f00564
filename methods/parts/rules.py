"""Rules: modules that compute class scores [B, C] from embeddings [B, D].

A rule is a module, so it can be stored, inspected, and run on a machine without the method. A rule keeps the tensors
with which it was made. A method makes a new rule after it has learned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import ClassVar, Final, Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protofleet.methods.maths.geometry import distances, same_norm, squared_distances, unit

Metric: TypeAlias = Literal["squared", "euclidean", "cosine"]

NEARNESS: Final[Mapping[str, Callable[[Tensor, Tensor], Tensor]]] = {  # [B, D], [G, D] -> [B, G]
    "squared": lambda z, rows: -squared_distances(z, rows),
    "euclidean": lambda z, rows: -distances(z, rows),
    "cosine": lambda z, rows: unit(z) @ rows.T,
}


class Rule(nn.Module):
    """A rule that can be stored in a file: its `kind`, its `settings` and its tensors describe it completely."""

    kind: ClassVar[str]

    def settings(self) -> dict[str, str | float | bool | None]:
        return {}


class Classifier(Rule):
    """The head of the network; with `sphere`, the embeddings are first scaled to length 1."""

    kind = "classifier"

    def __init__(self, head: nn.Module, *, sphere: bool = False) -> None:
        super().__init__()
        self.head, self.sphere = head, sphere

    def settings(self) -> dict[str, str | float | bool | None]:
        return {"sphere": self.sphere}

    def forward(self, z: Tensor) -> Tensor:
        scores: Tensor = self.head(unit(z) if self.sphere else z)
        return scores


class Nearest(Rule):
    """A rule in which the score of a class is the nearness of the sample to the nearest row of this class.

    A class without rows has the score `missing`, and is never chosen.
    """

    kind = "nearest"
    rows: Tensor  # [G, D]; if the metric is the cosine, each row has length 1
    places: Tensor  # [C, K]: indices of each class's rows among the G rows; an unused place holds G

    def __init__(
        self, rows: Tensor, labels: Tensor, classes: int, metric: Metric, *, missing: float = -math.inf
    ) -> None:
        super().__init__()
        self.metric, self.missing = metric, missing
        self.register_buffer("rows", rows.detach())
        self.register_buffer("places", places_of(labels, classes))

    def settings(self) -> dict[str, str | float | bool | None]:
        return {"metric": self.metric, "missing": None if self.missing == -math.inf else self.missing}

    def near(self, z: Tensor) -> Tensor:
        """Return the nearness of each sample to each row, [B, G]."""
        return NEARNESS[self.metric](z, self.rows)

    def forward(self, z: Tensor) -> Tensor:
        near = self.near(z)
        # With len(z), an exported model would have a fixed batch size.
        near = torch.cat([near, near.new_full((z.shape[0], 1), self.missing)], dim=1)
        by_class = near.index_select(1, self.places.reshape(-1)).reshape(z.shape[0], *self.places.shape)
        return by_class.amax(dim=2)


class Linear(Rule):
    """A rule with a row of weights and a bias for each class.

    A class that is not known has the score minus infinity, and is never chosen. With `normalised`, the embeddings
    are first scaled to norm sqrt(D).
    """

    kind = "linear"
    weight: Tensor  # [C, D]
    bias: Tensor  # [C]
    known: Tensor  # [C], bool

    def __init__(self, weight: Tensor, bias: Tensor, known: Tensor, *, normalised: bool) -> None:
        super().__init__()
        self.normalised = normalised
        self.register_buffer("weight", weight.detach())
        self.register_buffer("bias", bias.detach())
        self.register_buffer("known", known)

    def settings(self) -> dict[str, str | float | bool | None]:
        return {"normalised": self.normalised}

    def forward(self, z: Tensor) -> Tensor:
        scores = F.linear(same_norm(z) if self.normalised else z, self.weight, self.bias)
        return scores.masked_fill(~self.known, -math.inf)


class Gaussians(Rule):
    """A rule with a Gaussian for each class: the score is an offset less half the squared distance to the mean.

    The distance is the length of the gap to the mean, times `scales`: numbers [C, D], or matrices [C, D, D]. An
    offset of minus infinity marks a class that is never chosen.
    """

    kind = "gaussians"
    means: Tensor  # [C, D]
    scales: Tensor  # [C, D] or [C, D, D]
    offsets: Tensor  # [C]

    def __init__(self, means: Tensor, scales: Tensor, offsets: Tensor, *, normalised: bool) -> None:
        super().__init__()
        self.normalised = normalised
        self.register_buffer("means", means.detach())
        self.register_buffer("scales", scales.detach())
        self.register_buffer("offsets", offsets.detach())

    def settings(self) -> dict[str, str | float | bool | None]:
        return {"normalised": self.normalised}

    def forward(self, z: Tensor) -> Tensor:
        x = same_norm(z) if self.normalised else z
        # One class after another, because an array [C, B, D] is too large for a small device.
        gaps = [
            (x - mean) * scale if scale.ndim == 1 else (x - mean) @ scale
            for mean, scale in zip(self.means, self.scales, strict=True)
        ]
        return self.offsets - torch.stack([gap.square().sum(dim=1) for gap in gaps], dim=1) / 2


class MeanOfDraws(Rule):
    """A rule that turns mu and sigma, in one array [B, 2 D], into the logarithms of the mean softmax [B, C]."""

    kind = "mean of draws"
    noise: Tensor  # [draws, D]

    def __init__(self, head: nn.Module, noise: Tensor) -> None:
        super().__init__()
        self.head = head
        self.register_buffer("noise", noise)

    def forward(self, moments: Tensor) -> Tensor:
        mu, sigma = moments.chunk(2, dim=1)
        draws = torch.stack([F.log_softmax(self.head(mu + sigma * eps), dim=1) for eps in self.noise])
        return torch.logsumexp(draws, dim=0) - math.log(len(draws))


def places_of(labels: Tensor, classes: int) -> Tensor:
    """Return a table [C, K]: row c has the indices of the labels c, then `len(labels)` in each unused place."""
    places = [(labels == label).nonzero().squeeze(1) for label in range(classes)]
    longest = max(1, *map(len, places))
    table = labels.new_full((classes, longest), len(labels))
    for label, found in enumerate(places):
        table[label, : len(found)] = found
    return table


def nearest_known(prototypes: Tensor, known: Tensor, metric: Metric) -> Nearest:
    """Return the rule of the nearest row in a table [C, D]; the mask `known` [C] marks the known classes."""
    return Nearest(prototypes[known], known.nonzero().squeeze(1), len(known), metric)


def both_ways(head: nn.Module, prototypes: Tensor, known: Tensor) -> Mapping[str, nn.Module]:
    """Return the rules "prototype" and "classifier"; these names are the values of the setting `inference`.

    While no prototype is known, the head is used for both rules.
    """
    nearest = nearest_known(prototypes, known, "squared") if known.any() else head
    return {"prototype": nearest, "classifier": head}
