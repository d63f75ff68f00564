"""Formulas shared by methods: tensors in, tensors out, no state.

A table of class means is [C, D] with counts or a mask [C] beside it; an absent class's row is never read.
Sums over samples and devices are taken in float64 and cast back. Losses are means over the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from methods.averaging import weighted_mean as weighted_mean

ClassMeans: TypeAlias = tuple[Tensor, Tensor]  # means [C, D], counts [C]

SHORTEST = 1e-12  # a shorter vector has no direction

REDUCE: Mapping[str, Callable[[Tensor], Tensor]] = {
    "mean": torch.mean,
    "sum": torch.sum,
    "none": torch.Tensor.clone,
}


def proximal(model: nn.Module, anchor: Mapping[str, Tensor]) -> Tensor:
    """Half the squared distance of the parameters, not buffers, to `anchor` (FedProx, eq. 2, without mu)."""
    gaps = [(w - anchor[name]).square().sum() for name, w in model.named_parameters()]
    return 0.5 * torch.stack(gaps).sum()


def unit(x: Tensor) -> Tensor:
    """Rows of length 1. A zero row stays zero and has a finite gradient, which x / |x| has not."""
    norms = x.norm(dim=-1, keepdim=True)
    return x / torch.where(norms > SHORTEST, norms, 1.0)


def squared_distances(x: Tensor, centres: Tensor) -> Tensor:
    """[B, D], [C, D] -> [B, C], centre by centre: [B, C, D] is too large for a small device.

    x^2 - 2 x c + c^2 (FedSA's and FedTGP's code) loses all digits of a small distance and can turn negative.
    """
    return torch.stack([(x - centre).square().sum(dim=-1) for centre in centres], dim=-1)


def distances(x: Tensor, centres: Tensor) -> Tensor:
    """Euclidean, [B, C]. The small number keeps the gradient finite where a sample meets its centre."""
    return (squared_distances(x, centres) + 1e-12).sqrt()


def margins(points: Tensor) -> Tensor:
    """[C]: how far each prototype's or anchor's nearest neighbour is (FedLSA, fig. 1)."""
    return distances(points, points).masked_fill(_diagonal(points), math.inf).min(dim=1).values


def class_sums(z: Tensor, y: Tensor, classes: int, counts: Tensor | None = None) -> ClassMeans:
    """Sum of each class's rows [C, D] in float64, and their number [C]; a row may stand for `counts` rows."""
    each = torch.ones_like(y) if counts is None else counts
    total = each.new_zeros(classes).index_add_(0, y, each)
    sums = z.new_zeros(classes, z.shape[1], dtype=torch.float64)
    return sums.index_add_(0, y, z.double() * each.unsqueeze(1)), total


def means_of(sums: Tensor, counts: Tensor) -> Tensor:
    return sums / counts.clamp(min=1).unsqueeze(1)


def class_means(z: Tensor, y: Tensor, classes: int, counts: Tensor | None = None) -> ClassMeans:
    """Mean row and count of each class; a class without samples has count 0 and a row that means nothing."""
    sums, total = class_sums(z, y, classes, counts)
    return means_of(sums, total).to(z.dtype), total


def merge_class_means(pieces: Iterable[ClassMeans]) -> ClassMeans:
    """Devices' class means weighted by their counts: what pooling the samples gives (FedProto, eq. 6)."""
    remaining = iter(pieces)
    means, counts = next(remaining)
    dtype, sums, total = means.dtype, _weighed(means, counts), counts
    for means, counts in remaining:
        sums, total = sums + _weighed(means, counts), total + counts
    return means_of(sums, total).to(dtype), total


def average_class_means(pieces: Iterable[ClassMeans]) -> ClassMeans:
    """Every device that holds a class counts once (FedProto's code; FedLSA, eq. 2). Counts are devices."""
    return merge_class_means((means, counts.clamp(max=1)) for means, counts in pieces)


def _weighed(means: Tensor, counts: Tensor) -> Tensor:
    column = counts.unsqueeze(1)
    return torch.where(column > 0, means.double() * column, 0.0)


def prototype_mse(z: Tensor, y: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """Mean squared gap to the prototype of the own class, over B x D elements (FedProto's code).

    Samples of a class without prototype are no part of the mean; if all are, it is 0.
    """
    held = known[y]
    gaps = (z[held] - prototypes[y[held]]).square()
    return gaps.sum() / max(gaps.numel(), 1)


def separation(anchors: Tensor, tau: float, *, tau_inside: bool = True, reduction: str = "mean") -> Tensor:
    """L_SEP of FedLSA, eq. 4: log of the mean over j != i of exp(a_i . a_j / tau), for every anchor i.

    Eq. 4 prints exp(a_i . a_j) / tau, where tau only shifts the value: that is tau_inside=False. It prints no
    sum over i. Only unit anchors have a smallest value.
    """
    cosines = (anchors @ anchors.T).masked_fill(_diagonal(anchors), -math.inf)
    logs = torch.logsumexp(cosines / tau, 1) if tau_inside else torch.logsumexp(cosines, 1) - math.log(tau)
    return REDUCE[reduction](logs - math.log(len(anchors) - 1))


def compactness(h: Tensor, y: Tensor, anchors: Tensor, tau: float, *, reduction: str = "mean") -> Tensor:
    """L_COM of FedLSA, eq. 8: -log of the own anchor's share under von Mises-Fisher with kappa = 1 / tau."""
    return F.cross_entropy(h @ anchors.T / tau, y, reduction=reduction)


def anchor_cross_entropy(head: nn.Module, anchors: Tensor, *, reduction: str = "mean") -> Tensor:
    """L_ACE of FedLSA, eq. 3: the classifier is to take anchor i for class i."""
    return F.cross_entropy(head(anchors), torch.arange(len(anchors)), reduction=reduction)


def _diagonal(rows: Tensor) -> Tensor:
    return torch.eye(len(rows), dtype=torch.bool, device=rows.device)
