"""The three losses of FedLSA with anchors on a sphere (eqs. 3, 4 and 8)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protofleet.methods.maths.geometry import diagonal
from protofleet.methods.maths.reduction import REDUCE


def separation(anchors: Tensor, tau: float, *, tau_inside: bool = True, reduction: str = "mean") -> Tensor:
    """Return L_SEP of FedLSA (eq. 4). For anchor i, it is the log of the mean of exp(a_i . a_j / tau) over j != i.

    Eq. 4 prints exp(a_i . a_j) / tau, where tau only shifts the value: this is tau_inside=False. Eq. 4 does
    not print a sum over i. The loss has a smallest value only for unit anchors.
    """
    cosines = (anchors @ anchors.T).masked_fill(diagonal(anchors), -math.inf)
    logs = torch.logsumexp(cosines / tau, 1) if tau_inside else torch.logsumexp(cosines, 1) - math.log(tau)
    return REDUCE[reduction](logs - math.log(len(anchors) - 1))


def compactness(h: Tensor, y: Tensor, anchors: Tensor, tau: float, *, reduction: str = "mean") -> Tensor:
    """Return L_COM of FedLSA, eq. 8: -log of the own class's von Mises-Fisher probability, kappa = 1 / tau."""
    return F.cross_entropy(h @ anchors.T / tau, y, reduction=reduction)


def anchor_cross_entropy(head: nn.Module, anchors: Tensor, *, reduction: str = "mean") -> Tensor:
    """Return L_ACE of FedLSA, eq. 3: the cross-entropy between the classifier's scores of anchor i and class i."""
    return F.cross_entropy(
        head(anchors), torch.arange(len(anchors), device=anchors.device), reduction=reduction
    )
