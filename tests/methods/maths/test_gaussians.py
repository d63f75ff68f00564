"""Tests of the Gaussian classifiers against densities and covariances of the pooled samples."""

import math

import numpy as np
import pytest
import torch
from torch.distributions import MultivariateNormal, Normal
from torch.testing import assert_close

from protofleet.methods.maths.gaussians import (
    SMALLEST_VARIANCE,
    class_covariances,
    linear_discriminants,
    log_priors,
    pooled_covariance,
    shrunk,
    variances,
    whiteners,
)
from tests.methods.tiny import normal

EXACT = {"rtol": 1e-9, "atol": 1e-9}
D = 5
Y = torch.tensor([0, 1, 2, 0, 1, 1, 2, 0, 1] * 4)
X = normal(len(Y), D, seed=1) @ normal(D, D, seed=2) + 2 * torch.eye(D, dtype=torch.float64)[Y]
COUNTS = Y.bincount(minlength=3)
POINTS = normal(7, D, seed=3)


def by_class(x, y=Y):
    return [x[y == label] for label in range(3)]


MEANS = torch.stack([part.mean(dim=0) for part in by_class(X)])


def scatters(x, y, means, classes=3):
    """Return the scatter about these class means, summed sample by sample."""
    found = torch.zeros(classes, D, D, dtype=torch.float64)
    for one, label in zip(x, y.tolist(), strict=True):
        gap = one - means[label]
        found[label] += torch.outer(gap, gap)
    return found


def scores_of(points, head):
    return points @ head[:, :-1].T + head[:, -1]


def centred(scores):
    return scores - scores.mean(dim=1, keepdim=True)


def test_the_variances_are_those_of_the_samples_of_each_class_and_never_zero():
    x = X.clone()
    x[Y == 1, 2] = 4.0
    means = torch.stack([part.mean(dim=0) for part in by_class(x)])
    found = variances(means, torch.stack([part.square().mean(dim=0) for part in by_class(x)]))
    wanted = torch.stack([part.var(dim=0, correction=0) for part in by_class(x)])
    assert found[1, 2] == SMALLEST_VARIANCE
    wanted[1, 2] = SMALLEST_VARIANCE
    assert_close(found, wanted, **EXACT)
    scores = [
        Normal(mean, var.sqrt()).log_prob(POINTS).sum(dim=1) for mean, var in zip(means, found, strict=True)
    ]
    by_hand = -0.5 * ((POINTS.unsqueeze(1) - means).square() / found).sum(dim=2) - 0.5 * found.log().sum(
        dim=1
    )
    assert_close(centred(by_hand), centred(torch.stack(scores, dim=1)), **EXACT)


def test_priors_are_the_shares_of_the_classes_in_the_samples():
    found = log_priors(torch.tensor([3, 0, 1]))
    assert found.tolist() == pytest.approx([math.log(0.75), -math.inf, math.log(0.25)])


def test_covariances_equal_those_of_numpy():
    found = class_covariances(scatters(X, Y, MEANS), COUNTS)
    for covariance, part in zip(found, by_class(X), strict=True):
        assert_close(covariance, torch.from_numpy(np.cov(part.numpy().T)), **EXACT)
    gaps = X - MEANS[Y]
    pooled = pooled_covariance(scatters(X, Y, MEANS).sum(dim=0), COUNTS)
    assert_close(pooled, gaps.T @ gaps / (len(Y) - 3), **EXACT)


def test_a_class_with_one_sample_has_the_pooled_covariance():
    x, y = torch.cat([X[Y < 2], X[Y == 2][:1]]), torch.cat([Y[Y < 2], Y[Y == 2][:1]])
    means = torch.stack([part.mean(dim=0) for part in by_class(x, y)])
    found = class_covariances(scatters(x, y, means), y.bincount(minlength=3))
    gaps = x - means[y]
    assert_close(found[2], gaps.T @ gaps / (len(y) - 3), **EXACT)


def test_shrinkage_keeps_the_trace_and_a_full_shrinkage_gives_a_sphere():
    S = pooled_covariance(scatters(X, Y, MEANS).sum(dim=0), COUNTS)
    for share in (0.0, 0.3, 1.0):
        assert float(shrunk(S, share).trace()) == pytest.approx(float(S.trace()) + D * SMALLEST_VARIANCE)
    sphere = (float(S.trace()) / D + SMALLEST_VARIANCE) * torch.eye(D, dtype=torch.float64)
    assert_close(shrunk(S, 1.0), sphere, **EXACT)
    both = torch.stack([S, 2 * S])
    assert torch.equal(shrunk(both, 0.3)[1], shrunk(2 * S, 0.3))


def test_linear_discriminants_score_like_gaussians_with_one_covariance():
    S = shrunk(pooled_covariance(scatters(X, Y, MEANS).sum(dim=0), COUNTS), 0.1)
    head = linear_discriminants(MEANS, S, COUNTS)
    scores = scores_of(POINTS, head)
    wanted = [MultivariateNormal(mean, S).log_prob(POINTS) for mean in MEANS]
    assert_close(centred(scores), centred(torch.stack(wanted, dim=1) + log_priors(COUNTS)), **EXACT)


def test_linear_discriminants_in_all_fisher_directions_equal_those_of_the_whole_space():
    S = shrunk(pooled_covariance(scatters(X, Y, MEANS).sum(dim=0), COUNTS), 0.05)
    mean = X.mean(dim=0)
    between = (MEANS - mean).T @ torch.diag(COUNTS.double()) @ (MEANS - mean)
    white = torch.linalg.inv(torch.linalg.cholesky(S))
    directions = white.T @ torch.linalg.eigh(white @ between @ white.T).eigenvectors[:, -2:]  # C - 1 of them
    whole = scores_of(POINTS, linear_discriminants(MEANS, S, COUNTS))
    inside = linear_discriminants(MEANS @ directions, directions.T @ S @ directions, COUNTS)
    few = scores_of(POINTS @ directions, inside)
    assert_close(centred(whole), centred(few), **EXACT)


def test_whiteners_give_the_distance_and_the_determinant_for_a_covariance():
    S = shrunk(class_covariances(scatters(X, Y, MEANS), COUNTS), 0.1)
    U = whiteners(S)
    assert torch.equal(U, U.triu())
    for u, s, mean in zip(U, S, MEANS, strict=True):
        found = u.diagonal().log().sum() - ((POINTS - mean) @ u).square().sum(dim=1) / 2
        wanted = MultivariateNormal(mean, s).log_prob(POINTS) + D / 2 * math.log(2 * math.pi)
        assert_close(found, wanted, **EXACT)


def test_a_class_without_samples_has_a_row_of_zeros_and_changes_no_other_class():
    S = shrunk(pooled_covariance(scatters(X, Y, MEANS).sum(dim=0), COUNTS), 0.1)
    counts = torch.cat([COUNTS, torch.tensor([0])])
    more = linear_discriminants(torch.cat([MEANS, torch.zeros(1, D, dtype=torch.float64)]), S, counts)
    assert torch.equal(more[3], torch.zeros(D + 1, dtype=torch.float64))
    assert_close(more[:3], linear_discriminants(MEANS, S, COUNTS), **EXACT)


def test_a_covariance_without_an_inverse_is_refused():
    flat = torch.zeros(D, D, dtype=torch.float64)
    with pytest.raises(ArithmeticError, match="has no inverse; set a larger shrinkage"):
        linear_discriminants(MEANS, flat, COUNTS)
    assert whiteners(shrunk(flat, 0.1)).isfinite().all()


def test_lda_in_the_space_of_all_fisher_directions_gives_the_scores_of_lda():
    """The Fisher directions are the eigenvectors of S^-1 times the scatter of the class means."""
    S = pooled_covariance(scatters(X, Y, MEANS).sum(0), COUNTS)
    mean = (COUNTS.unsqueeze(1) * MEANS).sum(0) / COUNTS.sum()
    between = (MEANS - mean).T @ (COUNTS.unsqueeze(1) * (MEANS - mean))
    L = torch.linalg.cholesky(S)
    whitened = torch.linalg.solve_triangular(
        L, torch.linalg.solve_triangular(L, between, upper=False).T, upper=False
    )
    sizes, directions = torch.linalg.eigh(whitened)
    assert (sizes[:-2].abs() < 1e-9 * sizes[-1]).all(), "three means span two directions"
    V = torch.linalg.solve_triangular(L.T, directions[:, -2:], upper=True)
    whole = scores_of(POINTS, linear_discriminants(MEANS, S, COUNTS))
    few = scores_of(POINTS @ V, linear_discriminants(MEANS @ V, V.T @ S @ V, COUNTS))
    assert_close(centred(few), centred(whole), **EXACT)
