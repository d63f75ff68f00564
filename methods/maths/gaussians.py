"""Gaussian classifiers from sums: naive Bayes, linear and quadratic discriminant analysis.

Each class is a Gaussian with the prior probability n_c / n. The score of a class is the logarithm of its prior
and its density, without the terms that all classes share. A scatter matrix is the sum of (x - m)(x - m)' over
samples x with the class mean m.
"""

from __future__ import annotations

import torch
from torch import Tensor

SMALLEST_VARIANCE = 1e-6  # It keeps a feature that never changes from deciding alone.


def log_priors(counts: Tensor) -> Tensor:
    """Return log(n_c / n) [C]; a class without samples has minus infinity."""
    return (counts / counts.sum()).log()


def variances(means: Tensor, squares: Tensor) -> Tensor:
    """Return the variance of each feature in each class, from the means of the squared features [C, D]."""
    return (squares - means.square()).clamp(min=SMALLEST_VARIANCE)


def pooled_covariance(scatter: Tensor, counts: Tensor) -> Tensor:
    """Return S = scatter / (n - classes), from the scatter about the class means [D, D] and the counts [C]."""
    freedom = float(counts.sum()) - int((counts > 0).sum())
    return scatter / max(1.0, freedom)


def class_covariances(scatters: Tensor, counts: Tensor) -> Tensor:
    """Return S_c = scatter_c / (n_c - 1) [C, D, D]; a class with less than two samples has the pooled S."""
    own = scatters / (counts - 1).clamp(min=1)[:, None, None]
    pooled = pooled_covariance(scatters.sum(dim=0), counts)
    return torch.where((counts >= 2)[:, None, None], own, pooled)


def shrunk(covariance: Tensor, share: float) -> Tensor:
    """Return (1 - a) S + a tr(S)/D I, with `share` as a, for matrices [..., D, D].

    The smallest variance is added to the diagonal, so that the result has an inverse.
    """
    size = covariance.shape[-1]
    mean = covariance.diagonal(dim1=-2, dim2=-1).mean(dim=-1)[..., None, None]
    identity = torch.eye(size, dtype=covariance.dtype, device=covariance.device)
    return (1 - share) * covariance + (share * mean + SMALLEST_VARIANCE) * identity


def linear_discriminants(means: Tensor, covariance: Tensor, counts: Tensor) -> Tensor:
    """Return the rows W_c = S^-1 mu_c with the bias log(n_c/n) - W_c mu_c / 2, as a head [C, D + 1].

    The row of a class without samples is zero.
    """
    rows = torch.cholesky_solve(means.T, cholesky(covariance)).T
    bias = log_priors(counts) - (rows * means).sum(dim=1) / 2
    head = torch.cat([rows, bias.unsqueeze(1)], dim=1)
    return torch.where((counts > 0).unsqueeze(1), head, 0.0)


def whiteners(covariances: Tensor) -> Tensor:
    """Return upper triangular matrices U with S^-1 = U U', for matrices [..., D, D].

    The squared distance of S is the squared length of (x - mu)' U, and log det S is -2 sum log U_jj.
    """
    identity = torch.eye(covariances.shape[-1], dtype=covariances.dtype, device=covariances.device)
    inverse: Tensor = torch.linalg.solve_triangular(cholesky(covariances), identity, upper=False)
    return inverse.mT


def cholesky(matrices: Tensor) -> Tensor:
    """Return lower triangular matrices L with S = L L'.

    Raise ArithmeticError if a matrix is not positive definite.
    """
    lower: Tensor
    lower, failed = torch.linalg.cholesky_ex(matrices)
    if failed.any():
        raise ArithmeticError("a covariance matrix has no inverse; set a larger shrinkage")
    return lower
