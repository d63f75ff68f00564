"""Class means, as a table [C, D] with counts or a mask [C]; the row of an absent class is never read.

Sums over samples and devices are computed in float64, and the results are cast back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from protofleet.methods.contract.liveness import report_progress

ClassMeans: TypeAlias = tuple[Tensor, Tensor]  # The means [C, D] and the counts [C].


def class_sums(z: Tensor, y: Tensor, classes: int, counts: Tensor | None = None) -> ClassMeans:
    """Return the sum of each class's rows [C, D] in float64, and the number of these rows [C].

    With `counts`, each row stands for several rows.
    """
    each = torch.ones_like(y) if counts is None else counts
    total = each.new_zeros(classes).index_add_(0, y, each)
    sums = z.new_zeros(classes, z.shape[1], dtype=torch.float64)
    return sums.index_add_(0, y, z.double() * each.unsqueeze(1)), total


def means_of(sums: Tensor, counts: Tensor) -> Tensor:
    return sums / torch.where(counts > 0, counts, 1).unsqueeze(1)


def class_means(z: Tensor, y: Tensor, classes: int, counts: Tensor | None = None) -> ClassMeans:
    """Return the mean row and the count of each class.

    A class without samples has the count 0, and its row has no meaning.
    """
    sums, total = class_sums(z, y, classes, counts)
    return means_of(sums, total).to(z.dtype), total


def merge_class_means(
    pieces: Iterable[ClassMeans], weights: Sequence[float] | None = None
) -> ClassMeans:  # fmt: skip
    """Return the mean of the devices' class means, weighted by their counts (FedProto, eq. 6).

    The result is equal to the means over the samples of all devices. If the devices have `weights`, they multiply
    the counts, and the returned counts are not whole numbers.
    """
    if weights is not None:
        pieces = ((means, counts * weight) for (means, counts), weight in zip(pieces, weights, strict=True))
    remaining = iter(pieces)
    means, counts = next(remaining)
    dtype, sums, total = means.dtype, _weighed(means, counts), counts
    for means, counts in remaining:
        report_progress()
        sums, total = sums + _weighed(means, counts), total + counts
    return means_of(sums, total).to(dtype), total


def average_class_means(
    pieces: Iterable[ClassMeans], weights: Sequence[float] | None = None
) -> ClassMeans:  # fmt: skip
    """Return the mean of the devices' class means; every device that holds a class counts once.

    FedProto's code and eq. 2 of FedLSA do this. The returned counts are numbers of devices.
    """
    return merge_class_means(((means, counts.clamp(max=1)) for means, counts in pieces), weights)


def scaled(means: Tensor, counts: Tensor, a: float | None = None) -> Tensor:
    """Return a N_c P_c for the means P [C, D] and the counts N [C]; by default, `a` is C / (sum of the counts).

    With this `a`, the row of a class of average size is its mean (TinyProto's adaptive scaling).
    """
    factor = len(counts) / max(int(counts.sum()), 1) if a is None else a
    return means * counts.unsqueeze(1) * factor


def _weighed(means: Tensor, counts: Tensor) -> Tensor:
    column = counts.unsqueeze(1)
    return torch.where(column > 0, means.double() * column, 0.0)
