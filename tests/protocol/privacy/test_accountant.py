"""Tests of the accountant against other computations of the same epsilon."""

import math
from itertools import product

import numpy as np
import pytest
from scipy import special

from protofleet.protocol.privacy.accountant import (
    Noise,
    delta_of,
    epsilon_of,
    gaussian_epsilon,
    log_ratio_of_a_sum,
    mu_of,
    noise_multiplier,
)
from protofleet.protocol.privacy.mechanism import SIGMA, Mechanism, PrivacyBudget

# sigma / sensitivity, number of releases, epsilon at delta 1e-5 as PLDAccountant of dp-accounting 0.6.0 computes it.
# dp-accounting needs attrs below 24, which other tools of the tests exclude, so its values are stored.
CONVOLVED = [
    (1, 1, 4.3772), (2, 10, 7.5113), (5, 10, 2.5944), (10, 100, 4.3772), (3, 100, 19.1308), (0.6, 1, 8.0037),
    (1.9, 10, 7.9903), (37.3, 100, 1.0002), (4, 12, 3.7086), (2, 5, 4.9833), (7, 33, 3.487),
]  # fmt: skip


def releases(sigma, count):
    return [Noise(SIGMA, SIGMA / sigma, 1)] * count


STEP = 2e-3  # Width of the grid of the losses.


def epsilon_by_convolution(sigma, count, delta, reach=30.0, size=1 << 19):
    """Return epsilon from the law of the sum of the privacy losses, with each loss rounded up to a grid."""
    grid = np.arange(-reach, reach, STEP)
    assert len(grid) * count < size
    # The loss of one release is a Gaussian of mean 1 / (2 sigma^2) and deviation 1 / sigma.
    one = np.diff(special.ndtr((grid - 1 / (2 * sigma**2)) * sigma), prepend=0.0)
    law = np.fft.irfft(np.fft.rfft(one, n=size) ** count, n=size).clip(0)
    losses = -reach * count + STEP * np.arange(size)
    low, high = 0.0, 100.0
    for _ in range(30):
        middle = (low + high) / 2
        above = losses > middle
        found = float((law[above] * -np.expm1(middle - losses[above])).sum())
        low, high = (low, middle) if found <= delta else (middle, high)
    return high


@pytest.mark.parametrize(("sigma", "count", "epsilon"), CONVOLVED)
def test_the_closed_form_has_the_epsilon_of_the_convolution_to_four_digits(sigma, count, epsilon):
    assert gaussian_epsilon(math.sqrt(count) / sigma, 1e-5) == pytest.approx(epsilon, abs=5e-5)
    assert epsilon <= epsilon_of(releases(sigma, count), 1e-5) + 5e-5 <= epsilon + 1e-3


@pytest.mark.parametrize(("sigma", "count"), [(1, 1), (2, 5), (4, 12), (5, 10)])
def test_the_epsilon_agrees_with_a_convolution_of_the_losses(sigma, count):
    rounded_up = epsilon_by_convolution(sigma, count, 1e-5)
    # Each loss is rounded up by at most a step of the grid.
    assert rounded_up - STEP * count - 1e-4 <= epsilon_of(releases(sigma, count), 1e-5) <= rounded_up + 1e-4


def test_releases_with_different_noise_add_their_squares():
    mixed = [Noise(SIGMA, SIGMA / sigma, 1) for sigma in (1, 2, 5)]
    assert mu_of(mixed) == pytest.approx(math.sqrt(1 + 1 / 4 + 1 / 25))
    assert epsilon_of(mixed, 1e-5) == epsilon_of(mixed[::-1], 1e-5) > epsilon_of(mixed[:2], 1e-5)


def test_epsilon_is_zero_without_a_release_and_infinite_without_noise():
    assert epsilon_of([], 1e-5) == 0
    assert epsilon_of(releases(1e-4, 1), 1e-5) == math.inf
    assert epsilon_of(releases(1, 1), 0.0) == math.inf


def exact_delta(sigma, shift, epsilon, reach=60):
    """Return delta of one discrete Gaussian number from a sum over all its values."""
    y = np.arange(-int(reach * sigma), int(reach * sigma) + 1)
    weights = np.exp(-(y**2) / (2 * sigma**2))
    law = weights / weights.sum()
    # P(y) against P(y + shift): the loss is (2 y shift + shift^2) / (2 sigma^2).
    loss = (2 * y * shift + shift**2) / (2 * sigma**2)
    above = loss > epsilon
    return float((law[above] * -np.expm1(epsilon - loss[above])).sum())


@pytest.mark.parametrize(("sigma", "shift"), list(product((2.0, 7.0, 33.3, 500.0), (1, 2, 5, 40))))
def test_the_epsilon_holds_for_the_exact_delta_of_a_discrete_gaussian(sigma, shift):
    epsilon = epsilon_of([Noise(sigma, shift, 1)], 1e-5)
    assert epsilon == math.inf or exact_delta(sigma, shift, epsilon) <= 1e-5


@pytest.mark.parametrize(("one", "parties"), list(product((0.5, 0.6, 0.8, 1.0), (2, 3, 5))))
def test_a_sum_of_discrete_gaussians_differs_from_one_gaussian_by_at_most_the_bound(one, parties):
    reach = 40
    y = np.arange(-reach, reach + 1)
    law = np.exp(-(y**2) / (2 * one**2))
    law /= law.sum()
    total = law
    for _ in range(parties - 1):
        total = np.convolve(total, law)
    wide = np.arange(-reach * parties, reach * parties + 1)
    single = np.exp(-(wide**2) / (2 * one**2 * parties))
    single /= single.sum()
    seen = single > 1e-12  # Below this, floats of 64 bits cannot show the ratio.
    ratio = np.abs(np.log(total[seen] / single[seen])).max()
    assert ratio <= log_ratio_of_a_sum(one * math.sqrt(parties), parties) + 1e-9


def test_the_bound_is_zero_for_one_party_and_too_little_noise_is_refused():
    assert log_ratio_of_a_sum(3.0, 1) == 0
    with pytest.raises(ValueError, match="at least 0.5"):
        log_ratio_of_a_sum(1.0, 9)


@pytest.mark.parametrize(
    ("epsilon", "count", "sigma"),
    [(1, 1, 3.73), (4, 1, 1.08), (8, 1, 0.60), (1, 10, 11.8), (4, 10, 3.42), (8, 10, 1.90), (1, 100, 37.3)],
)
def test_the_noise_for_a_budget_agrees_with_tables_of_the_literature(epsilon, count, sigma):
    assert noise_multiplier(epsilon, 1e-5, count) == pytest.approx(sigma, rel=5e-3)


@pytest.mark.parametrize(
    ("epsilon", "count", "numbers", "parties"), [(8, 1, 10, 1), (4, 10, 5130, 4), (1, 100, 53_002, 1)]
)
def test_all_releases_of_a_budget_together_use_up_the_budget_and_no_more(epsilon, count, numbers, parties):
    multiplier = PrivacyBudget(epsilon, 1e-5, count).multiplier(numbers, parties)
    noise = Mechanism("device", 1.0, numbers, multiplier, parties).noise
    assert epsilon - 1e-6 <= epsilon_of([noise] * count, 1e-5) <= epsilon
    assert epsilon_of([noise] * (count + 1), 1e-5) > epsilon


def test_a_budget_that_no_noise_can_meet_is_refused_with_its_values():
    with pytest.raises(ValueError, match=r"epsilon is 1e-06 and delta 1e-05"):
        PrivacyBudget(1e-6, 1e-5, 1000).multiplier(100_000)


@pytest.mark.parametrize("mu", [1e-3, 0.1, 1.0, 10.0, 60.0])
def test_delta_falls_as_epsilon_grows_and_stays_between_0_and_1(mu):
    found = [delta_of(mu, epsilon) for epsilon in np.linspace(0, 3000, 400)]
    assert all(0 <= after <= before <= 1 for before, after in zip(found, found[1:], strict=False))
