"""The formulas of FedSA (eqs. 3, 5 to 8 and 10): margins, distances to anchors, and a calibrated head.

`anchors` are [C, D] and constant. `labels` [J] has the class of each row of `rows` [J, D]. Rows may be half
floats, so distances are computed at least in float32, where 1e-12 is not zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protofleet.methods.maths.geometry import at_least_float32, diagonal, distances, margins
from protofleet.methods.maths.means import ClassMeans, average_class_means, class_means, merge_class_means
from protofleet.methods.maths.proximity import prototype_mse
from protofleet.methods.maths.reduction import REDUCE


def over_pairs(points: Tensor) -> Tensor:
    """Return the mean distance over the N (N - 1) ordered pairs, which the paper calls "average margin"."""
    return _between(points).mean()


def to_nearest(points: Tensor) -> Tensor:
    """Return the mean over all points of the distance to the nearest other point, as in the authors' code."""
    return margins(points).mean()


def as_printed(points: Tensor) -> Tensor:
    """Return eq. 6 with the printed divisor (N - 1)^2. For two points, the result is twice their distance."""
    return _between(points).sum() / (len(points) - 1) ** 2


def _between(points: Tensor) -> Tensor:
    return distances(points, points)[~diagonal(points)]  # [N (N - 1)]


MARGIN: Mapping[str, Callable[[Tensor], Tensor]] = {
    "pairs": over_pairs,
    "nearest": to_nearest,
    "paper": as_printed,
}


def margin(points: Tensor, rule: str) -> Tensor:
    """Return d of eq. 6, a scalar; the result is 0 for fewer than two points."""
    return MARGIN[rule](points) if len(points) > 1 else points.new_zeros(())


def client_margin(anchors: Tensor, prototypes: Tensor, rule: str) -> Tensor:
    """Return d* = max(d_global, d_i); the result is d_global if the device has fewer than two prototypes."""
    return torch.maximum(margin(anchors, rule), margin(prototypes, rule))


def margin_contrast(
    rows: Tensor, labels: Tensor, anchors: Tensor, margin: Tensor, *, reduction: str = "mean"
) -> Tensor:
    """Return L_MCL, eq. 7: cross-entropy over negative distances; `margin` is added to the own distance."""
    own = F.one_hot(labels, len(anchors))
    return F.cross_entropy(
        -(distances(at_least_float32(rows), anchors) + margin * own), labels, reduction=reduction
    )


def anchor_mse(rows: Tensor, labels: Tensor, anchors: Tensor) -> Tensor:
    """Return L_R as in the authors' code. It is the mean over J x D elements of the squared gap to the anchors."""
    everywhere = torch.ones(len(anchors), dtype=torch.bool, device=anchors.device)
    return prototype_mse(at_least_float32(rows), labels, anchors, everywhere)


def anchor_distance(rows: Tensor, labels: Tensor, anchors: Tensor, *, reduction: str = "sum") -> Tensor:
    """Return L_R, eq. 5: the distance (not squared) of each class's prototype to its anchor."""
    own = distances(at_least_float32(rows), anchors).gather(1, labels.unsqueeze(1)).squeeze(1)
    return REDUCE[reduction](own)


def batch_prototypes(z: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return the means of the classes in the batch [J, D] and their labels [J]: eq. 2 with a gradient."""
    means, counts = class_means(at_least_float32(z), y, classes)
    held = counts > 0
    return means[held], held.nonzero().squeeze(1)


def classifier_calibration(
    head: nn.Module, anchors: Tensor, *, bias: bool = True, reduction: str = "mean"
) -> Tensor:
    """Return L_CC (eq. 8), the cross-entropy of the head's scores for the anchors. Anchor c has the label c.

    Only the head has a gradient.
    """
    scores = head(anchors) if bias else F.linear(anchors, weight_of(head))
    return F.cross_entropy(scores, torch.arange(len(anchors), device=anchors.device), reduction=reduction)


def weight_of(head: nn.Module) -> Tensor:
    """Return phi [C, D] of eq. 8, the weight of a linear head; raise ValueError for any other head."""
    if not isinstance(head, nn.Linear):
        raise ValueError(
            f"the head is {type(head).__name__}, which has no bias to leave out; "
            "take a linear head, or set cc_bias = true to use the scores with the bias"
        )
    return head.weight


def aggregate_as_printed(pieces: Iterable[ClassMeans]) -> ClassMeans:
    """Return eq. 3 exactly as printed.

    The weights sum to 1. The weighted sum is also divided by the number of devices that hold the class.
    """
    tables = list(pieces)
    means, counts = merge_class_means(tables)
    holders = torch.stack([own > 0 for _, own in tables]).sum(dim=0)
    return means / holders.clamp(min=1).unsqueeze(1), counts


AGGREGATE: Mapping[str, Callable[[Iterable[ClassMeans]], ClassMeans]] = {
    "weighted": merge_class_means,
    "unweighted": average_class_means,
    "paper": aggregate_as_printed,
}


def ema(anchors: Tensor, prototypes: Tensor, held: Tensor, decay: float) -> Tensor:
    """Return the anchors after eq. 10, which changes only the anchors of the received classes.

    The mask `held` [C] marks the received classes.
    """
    moved = decay * anchors + (1 - decay) * prototypes
    return torch.where(held.unsqueeze(1), moved, anchors)
