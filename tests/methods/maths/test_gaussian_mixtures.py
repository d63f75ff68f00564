"""Tests of Gaussian mixtures against torch's distributions, and of numbers that are no mixture."""

import math

import pytest
import torch
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from protofleet.methods.maths.gaussian_mixtures import (
    Mixture,
    drawn,
    fitted,
    log_densities,
    mixture_of,
    part_size,
    problem_with_mixture,
    row_of,
    shares_by_distance,
)
from protofleet.methods.maths.grams import upper_of
from tests.methods.tiny import normal

EXACT = {"rtol": 1e-9, "atol": 1e-9}
D = 4
KINDS = ("spherical", "diag", "full")
every_kind = pytest.mark.parametrize("kind", KINDS)


def dice(seed=0):
    return torch.Generator().manual_seed(seed)


def samples(n=60):
    """Return samples of two correlated clusters."""
    z = normal(n, D, seed=2) @ (torch.eye(D, dtype=torch.float64) + 0.3 * normal(D, D, seed=3))
    z[n // 3 :] += 4.0
    return z


def covariances(mixture):
    """Return the covariance matrix of each part, [K, D, D]."""
    if mixture.covariance == "full":
        return torch.stack([upper_of(row, D).T @ upper_of(row, D) for row in mixture.spreads])
    return torch.stack([torch.diag(row.expand(D)) for row in mixture.spreads])


def gaussians(mixture):
    return [MultivariateNormal(m, S) for m, S in zip(mixture.means, covariances(mixture), strict=True)]


def expected_step(z, mixture):
    """Return weights, means and covariances after one step of expectation maximisation, sample by sample."""
    parts = list(zip(mixture.weights, gaussians(mixture), strict=True))
    shares = []
    for x in z:
        densities = [float(weight) * math.exp(float(part.log_prob(x))) for weight, part in parts]
        shares.append([density / sum(densities) for density in densities])
    found = []
    for k in range(len(parts)):
        own = [share[k] for share in shares]
        mean = sum(share * x for share, x in zip(own, z, strict=True)) / sum(own)
        outer = sum(s * torch.outer(x - mean, x - mean) for s, x in zip(own, z, strict=True)) / sum(own)
        found.append((sum(own) / len(z), mean, outer + 1e-6 * torch.eye(D, dtype=torch.float64)))
    return found


@every_kind
def test_a_mixture_of_one_part_has_the_mean_and_the_covariance_of_the_samples(kind):
    z = samples()
    found, S = fitted(z, 1, kind, dice()), torch.cov(z.T, correction=0)
    wanted = S if kind == "full" else torch.diag(S.diagonal())
    wanted = torch.eye(D, dtype=torch.float64) * S.trace() / D if kind == "spherical" else wanted
    assert_close(found.means[0], z.mean(dim=0), **EXACT)
    assert_close(covariances(found)[0], wanted + 1e-6 * torch.eye(D, dtype=torch.float64), **EXACT)
    assert found.weights.tolist() == [1.0]


@every_kind
def test_log_densities_equal_those_of_torch_up_to_a_constant(kind):
    z = samples()
    found = fitted(z, 3, kind, dice())
    wanted = torch.stack([part.log_prob(z) for part in gaussians(found)], dim=1) + found.weights.log()
    assert_close(log_densities(z, found), wanted + D / 2 * math.log(2 * math.pi), **EXACT)


@every_kind
def test_a_fitted_mixture_does_not_change_with_another_step(kind):
    z = samples()
    found = fitted(z, 2, kind, dice())
    for k, (weight, mean, S) in enumerate(expected_step(z, found)):
        diagonal = torch.diag(S.diagonal())
        sphere = torch.eye(D, dtype=torch.float64) * S.trace() / D
        wanted = {"full": S, "diag": diagonal, "spherical": sphere}[kind]
        assert_close(found.weights[k], torch.tensor(weight, dtype=torch.float64), rtol=0, atol=1e-5)
        assert_close(found.means[k], mean, rtol=0, atol=1e-5)
        assert_close(covariances(found)[k], wanted, rtol=0, atol=1e-5)


@every_kind
def test_a_step_of_the_fit_is_a_step_of_expectation_maximisation(kind, monkeypatch):
    z = samples(24)
    monkeypatch.setattr("protofleet.methods.maths.gaussian_mixtures.MOST_STEPS", 1)
    before = fitted(z, 2, kind, dice(4))
    monkeypatch.setattr("protofleet.methods.maths.gaussian_mixtures.MOST_STEPS", 2)
    after = fitted(z, 2, kind, dice(4))
    for k, (weight, mean, S) in enumerate(expected_step(z, before)):
        diagonal = torch.diag(S.diagonal())
        sphere = torch.eye(D, dtype=torch.float64) * S.trace() / D
        assert_close(float(after.weights[k]), weight, **EXACT)
        assert_close(after.means[k], mean, **EXACT)
        assert_close(covariances(after)[k], {"full": S, "diag": diagonal, "spherical": sphere}[kind], **EXACT)


def test_two_clusters_become_two_parts():
    z = torch.cat([normal(40, D, seed=5), normal(20, D, seed=6) + 50.0])
    found = fitted(z, 2, "spherical", dice())
    order = found.weights.argsort()
    assert_close(found.weights[order], torch.tensor([1 / 3, 2 / 3], dtype=torch.float64), **EXACT)
    assert_close(found.means[order[0]], z[40:].mean(dim=0), **EXACT)


@every_kind
def test_a_mixture_has_at_most_as_many_parts_as_samples_which_may_be_equal(kind):
    assert len(fitted(samples(3), 8, kind, dice()).weights) == 3
    equal = fitted(torch.ones(5, D), 2, kind, dice())
    assert all(v.isfinite().all() for v in (equal.weights, equal.means, equal.spreads))
    assert float(equal.weights.sum()) == 1.0 and not problem_with_mixture(equal)
    assert shares_by_distance(torch.ones(5, D), 2, dice()).sum() == 5


@every_kind
def test_drawn_samples_have_the_mean_and_the_covariance_of_the_mixture(kind):
    mixture = fitted(samples(), 2, kind, dice())
    z = drawn(mixture, 40_000, dice(1))
    mean = mixture.weights @ mixture.means
    gaps = mixture.means - mean
    S = sum(w * (s + torch.outer(g, g)) for w, s, g in zip(mixture.weights, covariances(mixture), gaps))
    assert_close(z.mean(dim=0), mean, rtol=0, atol=0.05)
    assert_close(torch.cov(z.T), S, rtol=0, atol=0.15)


@every_kind
def test_a_row_contains_the_mixture_and_missing_parts_have_the_weight_0(kind):
    found = fitted(samples(3), 8, kind, dice())
    row = row_of(found, 5)
    again = mixture_of(row, 5, D, kind)
    assert len(row) == 5 * part_size(kind, D) and again.weights[3:].tolist() == [0.0, 0.0]
    for name in ("weights", "means", "spreads"):
        assert torch.equal(getattr(again, name)[:3], getattr(found, name))
    assert not problem_with_mixture(again) and float(covariances(again)[4].trace()) == D


@pytest.mark.parametrize(
    "kind, change, problem",
    [
        ("diag", lambda m: m.weights.__setitem__(0, -0.2), "a weight of -0.2, below 0"),
        ("diag", lambda m: m.weights.mul_(1.5), "weights with a sum of 1.5, which must be 1"),
        ("diag", lambda m: m.spreads.__setitem__((1, 2), 1e-9), "a variance of 1e-09, below 1e-08"),
        ("spherical", lambda m: m.spreads.__setitem__((0, 0), -1.0), "a variance of -1, below 1e-08"),
        ("full", lambda m: m.spreads.__setitem__((0, 0), 0.0), "a covariance that is not positive definite"),
        ("full", lambda m: m.means.mul_(9.0), "a part with a mean squared norm of "),
    ],
)
def test_numbers_that_are_no_mixture_are_reported_with_value_and_limit(kind, change, problem):
    z = samples()
    found = fitted(z, 2, kind, dice())
    most = 1.01 * float(z.square().sum(dim=1).max())
    assert problem_with_mixture(found, most) == ""
    change(found)
    assert problem_with_mixture(found, most).startswith(problem)


def test_rounding_to_float32_keeps_a_covariance_of_few_samples_positive_definite():
    z = normal(3, 200, seed=1)
    found = fitted(z, 1, "full", dice())
    rounded = Mixture("full", found.weights.float(), found.means.float(), found.spreads.float())
    assert problem_with_mixture(rounded) == ""
    U = upper_of(rounded.spreads[0].double(), 200)
    assert float(torch.linalg.eigvalsh(U.T @ U)[0]) > 1e-7
