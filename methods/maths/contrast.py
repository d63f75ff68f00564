"""Losses of embeddings [B, D] with several prototypes of each class [G, D].

`labels` [G] has the class of each prototype. `shares` [G] has the weight W of each prototype, for eqs. 6 to 8 of
FedPLCC. A loss has one value for each sample whose class has a prototype. Samples of other classes are left out.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from protofleet.methods.maths.geometry import unit

# A smaller cosine is replaced by this value before the square root, because the root is infinitely steep at 0.
LEAST = 1e-6


def cosines(z: Tensor, prototypes: Tensor) -> Tensor:
    """Return the cosines [B, G], at least in float32."""
    wide = torch.promote_types(torch.promote_types(z.dtype, prototypes.dtype), torch.float32)
    return unit(z.to(wide)) @ unit(prototypes.to(wide)).T


def sparse_similarity(z: Tensor, prototypes: Tensor, alpha: float, *, signed: bool = False) -> Tensor:
    """Return s = cos^alpha [B, G], eq. 7.

    A negative cosine has no root, so it counts as LEAST. With `signed`, s is the power of the absolute value of
    the cosine, with the sign of the cosine.
    """
    near = cosines(z, prototypes)
    if signed:
        return near.sign() * near.abs().clamp(min=LEAST) ** alpha
    return near.clamp(min=LEAST) ** alpha


def weighted_contrast(s: Tensor, y: Tensor, labels: Tensor, shares: Tensor, tau: float) -> Tensor:
    """Return L_contra, eq. 6."""
    own, held = own_prototypes(y, labels)
    logits = s / tau + shares.log()
    top = logits.masked_fill(~own, -math.inf)[held]
    return torch.logsumexp(logits[held], 1) - torch.logsumexp(top, 1)


def contrast(s: Tensor, y: Tensor, labels: Tensor, tau: float) -> Tensor:
    """Return L_contra, in which all prototypes have the same weight."""
    return weighted_contrast(s, y, labels, torch.ones_like(s[:1]), tau)


def off_centre(z: Tensor, y: Tensor, centres: Tensor, known: Tensor) -> Tensor:
    """Return (cos(z, c_y) - 1)^2 of FedPLVM; c_y is the row of `centres` [C, D] for the class of the sample."""
    held = known[y]
    return ((unit(z[held]) * unit(centres[y[held]])).sum(dim=1) - 1).square()


def distances_to_own(z: Tensor, y: Tensor, centres: Tensor, known: Tensor) -> Tensor:
    """Return 1 - cos(z, c_y) of FedDAP; c_y is the row of `centres` [C, D] for the class of the sample."""
    held = known[y]
    return 1 - F.cosine_similarity(z[held], centres[y[held]])


def top_k(phi: float, n: Tensor) -> Tensor:
    """Return k = ceil(phi n).

    A small number is subtracted first, because in floating-point numbers 0.07 * 100 is slightly above 7.
    """
    return torch.ceil(phi * n.double() - 1e-9).long().clamp(min=1)


def corrected(s: Tensor, y: Tensor, labels: Tensor, shares: Tensor, phi: float) -> Tensor:
    """Return L_corr of eq. 8, which is minus the sum of the k largest products s W."""
    own, held = own_prototypes(y, labels)
    products = (s * shares).masked_fill(~own, -math.inf)[held]
    ordered = products.sort(dim=1, descending=True).values
    k = top_k(phi, own[held].sum(dim=1))
    chosen = torch.arange(ordered.shape[1], device=s.device) < k.unsqueeze(1)
    return -ordered.masked_fill(~chosen, 0.0).sum(dim=1)


def own_prototypes(y: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return a mask [B, G] of the prototypes of each sample's class, and a mask [B] of the samples that have one."""
    own = y.unsqueeze(1) == labels
    return own, own.any(dim=1)


def contrast_with_sets(z: Tensor, y: Tensor, rows: Tensor, held: Tensor, tau: float) -> Tensor:
    """Return the cross-entropy over the cosines with the rows of each of S sets, [S] (FedPCL).

    The mask `held` [S, C] marks the classes of each set, and `rows` [R, D] has the rows of these classes, set by set.
    A loss is the mean over the samples whose class is in the set. If there is no such sample, it is 0.
    """
    near = cosines(z, rows) / tau
    scores = near.new_full((len(z), held.numel()), -math.inf)
    scores[:, held.flatten()] = near
    own = held[:, y].T  # [B, S]
    found = F.cross_entropy(
        scores.view(len(z), *held.shape)[own], y.unsqueeze(1).expand_as(own)[own], reduction="none"
    )
    losses = near.new_zeros(own.shape)
    losses[own] = found
    return losses.sum(dim=0) / own.sum(dim=0).clamp(min=1)


def own_mean(losses: Tensor) -> Tensor:
    return losses.sum() / max(len(losses), 1)
