"""The prototypes of FedHP (eqs. 2 to 5): they lie far apart on a sphere, are trained, and are averaged by class."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from protofleet.methods.maths.geometry import diagonal, distances, unit
from protofleet.methods.maths.means import ClassMeans
from protofleet.methods.maths.reduction import REDUCE
from protofleet.methods.parts.optimizers import SGD

SLACK = 1e-3  # Allowed deviation of a length that must be 1.


def nearness(P: Tensor) -> Tensor:
    """Return M of eq. 3, [C, C]: the cosines of unit rows.

    The diagonal is lowered by 2, so no row is its own nearest neighbour.
    """
    lengths = P.detach().norm(dim=1)
    if not bool(((lengths - 1).abs() < SLACK).all()):
        raise ValueError(
            f"rows have lengths {lengths.tolist()}, but eq. 3 needs rows of length 1; normalise them"
        )
    return P @ P.T - 2 * diagonal(P).to(P.dtype)


def uniformity(P: Tensor, *, reduction: str = "mean") -> Tensor:
    """Return L_U (eq. 3), which is the cosine of every row with its nearest neighbour."""
    return REDUCE[reduction](nearness(P).max(dim=1).values)


def spread(start: Tensor, steps: int, lr: float, momentum: float, weight_decay: float) -> Tensor:
    """Return unit rows [C, d] after `steps` steps of SGD on L_U from `start`.

    The rows are scaled to length 1 before each step and at the end. The gradient is taken from eq. 3 as
    printed, without the derivative of the scaling.
    """
    P = start.clone().requires_grad_()
    optimizer = SGD([P], lr=lr, momentum=momentum, weight_decay=weight_decay)
    for _ in range(steps):
        _make_unit(P)
        optimizer.zero_grad()
        torch.autograd.backward(uniformity(P))
        optimizer.step()
    _make_unit(P)
    return P.detach()


@torch.no_grad()
def _make_unit(P: Tensor) -> None:
    P.copy_(unit(P))


def distance_cross_entropy(z: Tensor, y: Tensor, prototypes: Tensor, *, reduction: str = "mean") -> Tensor:
    """Return L_D, eq. 2: cross-entropy over the negative distance (not squared) to each prototype."""
    return F.cross_entropy(-distances(z, prototypes), y, reduction=reduction)


def cosine_distance(anchors: Tensor, prototypes: Tensor, *, reduction: str = "sum") -> Tensor:
    """Return L_H (eq. 4), which is 1 - cos of each prototype and its anchor, or 1 for a zero prototype."""
    return REDUCE[reduction](1 - (unit(anchors) * unit(prototypes)).sum(dim=1))


def aggregate(pieces: Iterable[ClassMeans], previous: Tensor, *, by_counts: bool = False) -> Tensor:
    """Return pi_g [C, d] of eq. 5, class by class.

    The weights N_i^j / N_i are scaled to a sum of 1 over the devices. A piece is a device's prototypes [C, d]
    with N_i^j [C]. With by_counts, the weights are N_i^j. If no device holds a class, the
    result has the row of `previous`.
    """
    weighed = ((rows, counts.double() if by_counts else shares(counts)) for rows, counts in pieces)
    sums, totals, _ = _weighted_sums(weighed, previous)
    held = (totals > 0).unsqueeze(1)
    means = sums / torch.where(held, totals.unsqueeze(1), 1.0)
    return torch.where(held, means.to(previous.dtype), previous)


def aggregate_as_printed(pieces: Iterable[ClassMeans], previous: Tensor) -> Tensor:
    """Return eq. 5 exactly as printed: a sum divided by K_t, the number of devices.

    If the weights of a class do not sum to K_t, the row of the class is too short. If no device holds a class, the
    row is zero. Without pieces, the result is `previous`.
    """
    sums, _, devices = _weighted_sums(((rows, shares(counts)) for rows, counts in pieces), previous)
    return (sums / devices).to(previous.dtype) if devices else previous


def shares(counts: Tensor) -> Tensor:
    """Return the shares N_i^j / N_i [C]; all shares of a device without examples are 0."""
    counts = counts.double()
    return counts / counts.sum().clamp(min=1)


def _weighted_sums(pieces: Iterable[ClassMeans], like: Tensor) -> tuple[Tensor, Tensor, int]:
    """Return the sums over devices [C, d] in float64, the sums of weights [C], and the number of devices."""
    sums = torch.zeros_like(like, dtype=torch.float64)
    totals, devices = sums.new_zeros(len(like)), 0
    for rows, weights in pieces:
        w = weights.to(like.device)
        sums += w.unsqueeze(1) * rows.to(sums)
        totals += w
        devices += 1
    return sums, totals, devices
