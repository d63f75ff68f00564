"""The losses of FedPall on a device (eqs. 6 and 7), and the mixed features that a device sends (eqs. 9 to 11)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from protofleet.methods.maths.geometry import at_least_float32, unit
from protofleet.methods.maths.reduction import REDUCE


def kl_with_uniform(logits: Tensor, *, direction: str = "paper", reduction: str = "mean") -> Tensor:
    """Return L_KL, eq. 6: KL(p || uniform) = sum_i p_i log(N p_i), p = softmax(logits [B, N]).

    "reverse" is KL(uniform || p), which the authors' code and ADCOL use. Both forms are 0 only if p is uniform.
    """
    N = logits.shape[1]
    logs = F.log_softmax(at_least_float32(logits), dim=1)  # In half precision, log p can be -inf.
    if direction == "reverse":
        return REDUCE[reduction](-math.log(N) - logs.mean(dim=1))
    return REDUCE[reduction](math.log(N) + (logs.exp() * logs).sum(dim=1))


def prototype_infonce(
    z: Tensor, y: Tensor, prototypes: Tensor, known: Tensor, tau: float, *, form: str = "standard"
) -> Tensor:
    """Return L_InfoNCE, eq. 7, which compares each feature with the global prototypes.

    `infonce_terms` explains how the forms differ. The mean is over the samples whose class has a prototype.
    If there is no such sample, the loss and its gradient are 0.
    """
    terms = infonce_terms(z, y, prototypes, known, tau, form=form)
    return terms.sum() / max(len(terms), 1)


def infonce_terms(
    z: Tensor, y: Tensor, prototypes: Tensor, known: Tensor, tau: float, *, form: str = "standard"
) -> Tensor:
    """Return the terms [B'], one for each sample whose class has a prototype.

    A term is the log of a sum minus sim(z, G^y) / tau. The forms differ in the sum:

    "standard"  sums over all known classes
    "paper"     omits the sample's class, as in eq. 7; a term is at least -2 / tau + log(K - 1), and 0 for K = 1
    "code"      sums over all known classes; prototypes are normalised in sim(z, G^y), but not in the sum
    """
    held = known[y]
    z, G = at_least_float32(z)[held], prototypes[known].to(torch.promote_types(z.dtype, torch.float32))
    if not len(z):
        return z.sum(dim=1)
    own = F.one_hot((known.cumsum(0) - 1)[y[held]], len(G)).bool()  # [B', K']
    similar = unit(z) @ unit(G).T / tau
    against = unit(z) @ G.T / tau if form == "code" else similar
    if form == "paper":
        if len(G) == 1:
            return 0.0 * z.sum(dim=1)  # No other class is known, so the sum is empty.
        against = against.masked_fill(own, -math.inf)
    return torch.logsumexp(against, dim=1) - similar[own]


def mixed(z: Tensor, y: Tensor, prototypes: Tensor, known: Tensor, alpha: float) -> Tensor:
    """Return r, eq. 9: alpha times the feature plus (1 - alpha) times the prototype of its class.

    If the class has no prototype yet, r is the feature itself.
    """
    r = alpha * z + (1 - alpha) * prototypes[y]
    return torch.where(known[y].unsqueeze(1), r, z)


def mixing_share(low: float, high: float, decimals: int, generator: torch.Generator) -> float:
    """Return alpha of eq. 9, drawn from U(low, high) and rounded to `decimals` decimals."""
    u = float(torch.rand((), generator=generator, dtype=torch.float64))
    return round(low + (high - low) * u, decimals)


def bernoulli_mask(size: int, beta: float, generator: torch.Generator) -> Tensor:
    """Return the mask of eq. 10: each of `size` numbers stays with probability beta."""
    return torch.bernoulli(torch.full((size,), beta), generator=generator)


def exact_mask(size: int, beta: float, generator: torch.Generator) -> Tensor:
    """Return the mask of the authors' code: int(beta * size) randomly chosen numbers stay."""
    return (torch.randperm(size, generator=generator) < int(beta * size)).float()


MASKS: Mapping[str, Callable[[int, float, torch.Generator], Tensor]] = {
    "bernoulli": bernoulli_mask,
    "exact": exact_mask,
}
