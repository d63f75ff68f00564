"""Random numbers are a plain function of PCG64's raw bits."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protofleet.edge_client.data.stable_random import NOISE_ONE, StableRandom


@given(st.integers(1, 2**20), st.integers(0, 40), st.text(max_size=5))
@settings(max_examples=50, deadline=None)
def test_a_bounded_draw_is_the_upper_half_of_the_raw_bits_scaled(limit, n, purpose):
    raw = StableRandom(purpose).raw(n)
    plain = [(int(word) >> 32) * limit >> 32 for word in raw]
    assert StableRandom(purpose).below(limit, n).tolist() == plain
    assert all(0 <= value < limit for value in plain)


def test_both_ends_of_a_range_are_drawn():
    assert set(StableRandom("ends").between(-2, 3, 1000).tolist()) == {-2, -1, 0, 1, 2, 3}


@given(st.integers(0, 200), st.integers())
@settings(max_examples=50, deadline=None)
def test_a_permutation_contains_each_number_once(n, seed):
    assert sorted(StableRandom(seed).permutation(n).tolist()) == list(range(n))


def test_each_purpose_has_its_own_stream():
    streams = [
        StableRandom(*words).below(1 << 30, 4).tolist()
        for words in ((0, "a"), (0, "b"), (1, "a"), ("0/a", ""))
    ]
    assert len({tuple(stream) for stream in streams}) == 4


def test_seven_noise_values_equal_the_first_seven_of_eight():
    assert StableRandom("n").noise(7).tolist() == StableRandom("n").noise(8).tolist()[:7]


def test_noise_has_a_normal_distribution_around_zero():
    noise = StableRandom("noise").noise(40_000)
    assert abs(noise.mean()) < 3
    assert noise.std() == pytest.approx(NOISE_ONE, rel=0.02)
    assert (np.abs(noise) < NOISE_ONE).mean() == pytest.approx(0.68, abs=0.03)


@pytest.mark.parametrize("shape", [0.3, 1.0, 5.0])
def test_gamma_draws_have_the_mean_and_the_variance_of_their_shape(shape):
    rng = StableRandom("gamma", shape)
    found = np.array([math.exp(rng.log_gamma_draw(shape)) for _ in range(4000)])
    assert found.mean() == pytest.approx(shape, rel=0.12)
    assert found.var() == pytest.approx(shape, rel=0.25)


def test_a_gamma_draw_too_small_for_a_float_still_has_a_logarithm():
    rng = StableRandom("tiny")
    logs = [rng.log_gamma_draw(1e-4) for _ in range(50)]
    assert all(math.isfinite(value) for value in logs)
    assert min(logs) < -1000  # its exp is 0
