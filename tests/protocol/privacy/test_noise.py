"""Tests of the discrete Gaussian sampler against its law, the exact probability of each number."""

import math
import random
from fractions import Fraction

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from protofleet.protocol.privacy import noise
from protofleet.protocol.privacy.noise import KeyStream, discrete_gaussian


def law(sigma, reach=14):
    """Return the numbers and their probabilities by exact fractions of 60 digits."""
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(60):
        sizes = range(math.ceil(reach * sigma) + 1)
        weights = [mpmath.exp(-mpmath.mpf(y * y) / (2 * mpmath.mpf(sigma) ** 2)) for y in sizes]
        total = 2 * mpmath.fsum(weights) - weights[0]
        return [Fraction(int(mpmath.floor(w / total * 2**190)), 2**190) for w in weights]


def borders(table):
    return [(int(high) << 64) | int(low) for high, low in zip(table.high, table.low, strict=True)]


@pytest.mark.parametrize("sigma", [0.5, 1.0, 3.7, 100.25])
def test_the_table_differs_from_the_exact_law_by_at_most_its_stated_distance(sigma):
    table, exact = discrete_gaussian(sigma), law(sigma)
    differences = np.diff([0, *borders(table)])
    drawn = [Fraction(int(one), 2**127) for one in differences]
    doubled = [exact[0], *(2 * p for p in exact[1:])]
    assert sum(abs(a - b) for a, b in zip(drawn, doubled, strict=True)) / 2 <= table.distance < 1e-34


@pytest.mark.parametrize("sigma", [0.5, 12.0, 32768.0])
def test_the_borders_rise_and_end_at_one(sigma):
    found = borders(discrete_gaussian(sigma))
    assert found[-1] == 2**127
    assert all(before <= after for before, after in zip(found, found[1:], strict=False))


@pytest.mark.parametrize("sigma", [0.8, 4.0, 25.0])
def test_drawn_numbers_pass_a_chi_square_test_of_the_law(sigma):
    from scipy import stats  # A slow import, so only the processes of these tests make it.

    drawn = discrete_gaussian(sigma).draw(200_000)
    exact = [float(p) for p in law(sigma)]
    reach = math.floor(3 * sigma)
    inside = [exact[abs(y)] for y in range(-reach, reach + 1)]
    seen = [int((drawn == y).sum()) for y in range(-reach, reach + 1)]
    expected = np.array([*inside, 1 - sum(inside)]) * len(drawn)
    found = [*seen, len(drawn) - sum(seen)]
    # A correct sampler fails once in 100,000 runs.
    assert stats.chisquare(found, expected).pvalue > 1e-5


def test_numbers_of_a_wide_law_follow_the_gaussian():
    from scipy import stats

    drawn = discrete_gaussian(32768.0).draw(100_000)
    assert stats.kstest(drawn / 32768.0, "norm").pvalue > 1e-5


def test_drawn_numbers_have_the_mean_variance_and_signs_of_the_law():
    sigma, count = 50.0, 400_000
    drawn = discrete_gaussian(sigma).draw(count).astype(float)
    assert abs(drawn.mean()) < 5 * sigma / math.sqrt(count)
    assert drawn.var() == pytest.approx(sigma**2, rel=5 * math.sqrt(2 / count))
    assert abs((drawn > 0).mean() - (drawn < 0).mean()) < 5 / math.sqrt(count)
    assert (drawn**4).mean() / sigma**4 == pytest.approx(3, rel=0.05)


def planted(*values):
    """Return a source of random words that gives these values and then fails."""
    left = list(values)
    return lambda count: np.array([left.pop(0) for _ in range(count)], np.uint64)


def test_each_random_word_gives_the_number_between_its_two_borders():
    table = discrete_gaussian(1.0)
    for size in range(4):
        inside = int(table.high[size]) - 1
        assert table.draw(1, planted(inside << 1))[0] == size
        assert table.draw(1, planted(inside << 1 | 1))[0] == -size


def test_a_word_that_equals_a_border_is_decided_by_64_more_bits():
    table = discrete_gaussian(1.0)
    border, rest = int(table.high[1]), int(table.low[1])
    assert table.draw(1, planted(border << 1, rest - 1))[0] == 1
    assert table.draw(1, planted(border << 1, rest))[0] == 2
    assert table.draw(2, planted(border << 1 | 1, 0, rest)).tolist() == [-2, 0]


def test_the_random_bits_come_from_aes_256_with_a_key_of_the_operating_system(monkeypatch):
    lengths = []

    def token_bytes(length):
        lengths.append(length)
        return bytes(range(length))

    monkeypatch.setattr(noise.secrets, "token_bytes", token_bytes)
    stream = Cipher(algorithms.AES(bytes(range(32))), modes.CTR(bytes(16))).encryptor().update(bytes(48))
    source = KeyStream()
    assert (source(2).tobytes() + source(4).tobytes()) == stream
    assert lengths == [32]


def test_seeds_of_random_numpy_and_torch_do_not_repeat_the_noise():
    drawn = []
    for _ in range(2):
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002 - shows that the noise does not depend on this generator
        torch.manual_seed(1)
        drawn.append(discrete_gaussian(1000.0).draw(64).tolist())
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize("sigma", [0.4, 1e6, math.nan, -1.0])
def test_a_sigma_without_a_table_is_refused_with_its_limits(sigma):
    with pytest.raises(ValueError, match=r"it must be from 0\.5 to 131072"):
        discrete_gaussian(sigma)
