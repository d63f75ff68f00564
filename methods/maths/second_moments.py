"""Second moments of features, estimated from means of parts of each class, in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from protofleet.methods.maths.means import class_means


def moment_from_means(rows: Tensor, labels: Tensor, counts: Tensor, classes: int, *, between: bool) -> Tensor:
    """Return an estimate [D, D] of the sum of x x' over all samples, from means [R, D] of `counts` samples each.

    If the samples of a class are drawn alike, the scatter of its means, each weighted by its count, shows the
    covariance of its samples. A class with one mean shows nothing. `between` adds the scatter of the class means
    about the mean of all samples.
    """
    means, totals = class_means(rows, labels, classes, counts)
    parts, n = labels.bincount(minlength=classes), totals.double()
    freedom = torch.where(parts > 1, (n - 1) / (parts - 1).clamp(min=1), 0.0)  # [C]
    apart = (rows - means[labels]) * (freedom[labels] * counts).sqrt().unsqueeze(1)  # [R, D]
    mean = n @ means / n.sum()
    moment = apart.T @ apart + n.sum() * torch.outer(mean, mean)
    if between:
        centred = (means - mean) * n.sqrt().unsqueeze(1)  # [C, D]
        moment = moment + centred.T @ centred
    return moment
