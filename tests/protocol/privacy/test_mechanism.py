"""Tests of the limits of a vector before its noise, and of the claimed epsilon under an attack on the mechanism."""

import math
import re

import numpy as np
import pytest
from scipy import special

from protofleet.protocol.privacy import mechanism as module
from protofleet.protocol.privacy.mechanism import Mechanism, PrivacyBudget, limited, on_grid
from protofleet.protocol.privacy.noise import discrete_gaussian

DELTA = 1e-5


def mechanism(unit="device", clip=2.0, numbers=50, epsilon=4.0, count=1, parties=1):
    return Mechanism(
        unit, clip, numbers, PrivacyBudget(epsilon, DELTA, count).multiplier(numbers, parties), parties
    )


@pytest.mark.parametrize("numbers", [1, 2, 50, 3000])
@pytest.mark.parametrize("size", [1e-9, 1.0, 1e30, 1e300])
def test_the_grid_vector_of_a_device_is_never_longer_than_the_clip(numbers, size):
    one, generator = mechanism(numbers=numbers), np.random.default_rng(numbers)
    for _ in range(20):
        vector = generator.standard_normal(numbers) * size
        whole = on_grid(limited(vector, one.limit), one.step).astype(object)
        # Exact whole numbers, so the test has no rounding of its own.
        assert int(whole @ whole) * one.step**2 <= one.clip**2


def test_the_limit_is_below_the_clip_by_the_largest_rounding_error():
    one = mechanism(numbers=400)
    assert one.limit == pytest.approx(one.clip - 10 * one.step)
    assert mechanism("sample", numbers=400).limit == pytest.approx(one.clip - 20 * one.step)


def test_a_sum_with_and_a_sum_without_a_sample_differ_by_at_most_the_clip():
    one, generator = mechanism("sample", numbers=64), np.random.default_rng(3)
    rows = generator.standard_normal((200, 64))
    rows *= one.limit / np.linalg.norm(rows, axis=1, keepdims=True)
    whole = on_grid(rows.sum(axis=0), one.step)
    for left_out in range(len(rows)):
        without = on_grid(rows.sum(axis=0) - rows[left_out], one.step)
        assert np.linalg.norm((whole - without) * one.step) <= one.clip


def test_a_sum_over_samples_keeps_its_length_and_each_sample_is_within_the_limit():
    one = mechanism("sample", numbers=4)
    sums = np.array([3.0, -40.0, 0.0, 7.5])
    assert one.values(one.whole(sums)) == pytest.approx(sums, abs=one.step)
    sample = np.array([one.clip, 0.0, 0.0, 0.0])
    assert one.whole(sample)[0] * one.step == pytest.approx(one.limit, abs=one.step)


def test_limiting_keeps_the_direction_and_leaves_short_vectors_unchanged():
    vector = np.array([3.0, -4.0])
    assert limited(vector, 5.0).tolist() == [3.0, -4.0]
    assert limited(vector, 1.0) == pytest.approx([0.6, -0.8])
    assert limited(np.zeros(3), 1.0).tolist() == [0, 0, 0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_refused(bad):
    for unit in ("device", "sample"):
        with pytest.raises(ValueError, match="not finite"):
            mechanism(unit, numbers=2).release(np.array([1.0, bad]))


def test_a_vector_of_another_length_is_refused():
    with pytest.raises(ValueError, match=re.escape("(3,), it must be (50,)")):
        mechanism().release(np.zeros(3))


def test_a_grid_whose_rounding_takes_too_much_of_the_clip_is_refused():
    with pytest.raises(ValueError, match="of the clip; allow a larger epsilon or fewer rounds"):
        mechanism("sample", numbers=3_000_000, epsilon=0.1, count=10)


def test_the_noise_of_a_release_has_the_deviation_of_the_budget():
    one = mechanism(numbers=20_000, clip=3.0)
    drawn = one.values(one.release(np.zeros(20_000)))
    assert drawn.std() == pytest.approx(3.0 * one.multiplier, rel=0.03)
    assert one.deviation == pytest.approx(3.0 * one.multiplier)


def test_the_noise_parts_of_all_devices_add_up_to_the_stated_deviation():
    one = mechanism(numbers=20_000, parties=4)
    total = sum(one.release(np.zeros(20_000)) for _ in range(4))
    assert one.values(total).std() == pytest.approx(one.deviation, rel=0.03)


def attacked(epsilon, trials):
    """Return a mechanism for many sums of one number each, with the noise that one such sum needs."""
    return Mechanism("sample", 2.0, trials, PrivacyBudget(epsilon, DELTA, 1).multiplier(1))


def empirical_epsilon(one):
    """Return a lower bound of epsilon, with a confidence of 99.9 %, from releases of two neighbouring sums.

    A longer vector would not help the attack: it would look at the vector only along the difference.
    The threshold comes from one half of the releases and is read on the other half.
    """
    with_sample, without = (one.release(np.full(one.numbers, total)) for total in (5 + one.clip, 5.0))
    return best_bound(with_sample, without)


def best_bound(with_unit, without):
    half = len(with_unit) // 2
    tried = np.quantile(
        with_unit[:half], np.concatenate([np.linspace(0.05, 0.95, 19), 1 - np.geomspace(1e-3, 0.05, 12)])
    )
    guessed = [bound_at(t, with_unit[:half], without[:half]) for t in tried]
    return bound_at(tried[int(np.argmax(guessed))], with_unit[half:], without[half:])


def bound_at(threshold, with_unit, without):
    right, wrong = int((with_unit > threshold).sum()), int((without > threshold).sum())
    right_rate = special.betaincinv(right, len(with_unit) - right + 1, 0.0005) if right else 0.0
    wrong_rate = special.betaincinv(wrong + 1, len(without) - wrong, 0.9995)
    return math.log((right_rate - DELTA) / wrong_rate) if right_rate > DELTA else 0.0


def half_the_noise(sigma):
    """Return the planted fault: a table of half the deviation."""
    return discrete_gaussian(sigma / 2)


TRIALS = 400_000


def test_an_attack_on_the_mechanism_finds_no_epsilon_above_the_claim():
    one = attacked(1.0, TRIALS)
    assert 0.2 < empirical_epsilon(one) <= 1.0


def test_the_same_attack_detects_half_the_noise(monkeypatch):
    one = attacked(1.0, TRIALS)
    monkeypatch.setattr(module, "discrete_gaussian", half_the_noise)
    assert empirical_epsilon(one) > 1.0


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 4.0])
def test_a_long_attack_finds_no_epsilon_above_the_claim(epsilon):
    assert 0 < empirical_epsilon(attacked(epsilon, 10 * TRIALS)) <= epsilon
