"""Linear heads in closed form, from class means and second moments; all in float64.

A matrix G [D, D] is a sum of x x' over features, or a covariance. It is symmetric, and never negative.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

Penalty: TypeAlias = Literal["relative", "absolute"]


def penalised(G: Tensor, lam: float, penalty: Penalty = "relative", weight: float = 1.0) -> Tensor:
    """Return G with a penalty on its diagonal.

    A relative penalty is `lam` times the mean of the diagonal of G, so it does not depend on the scale of the
    features. An absolute penalty is `lam` times `weight`.
    """
    added = lam * float(G.trace()) / len(G) if penalty == "relative" else lam * weight
    return G + added * torch.eye(len(G), dtype=G.dtype, device=G.device)


def solved(G: Tensor, B: Tensor) -> Tensor:
    """Return the solution W [D, C] of G W = B; if G is singular, return the shortest least-squares solution."""
    factor, info = torch.linalg.cholesky_ex(G)
    pivots = factor.diagonal().square()
    if int(info) == 0 and float(pivots.min()) > len(G) * torch.finfo(G.dtype).eps * float(pivots.max()):
        return torch.cholesky_solve(B, factor)
    found: Tensor = torch.linalg.pinv(G, hermitian=True) @ B
    return found


def unit_rows(W: Tensor) -> Tensor:
    """Return rows of length 1 in float64, however short they are; a zero row stays zero."""
    largest = W.abs().amax(dim=-1, keepdim=True)
    # Divided by its largest number, a row has squares that neither overflow nor vanish.
    rows = W / torch.where(largest > 0, largest, 1.0)
    norms: Tensor = rows.norm(dim=-1, keepdim=True).clamp(min=1.0)
    return rows / norms
