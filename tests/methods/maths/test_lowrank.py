"""Tests of matrices in factors, against NumPy and against values computed by hand."""

import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from protofleet.methods.maths.lowrank import numbers, packed, rank_of, unpacked
from tests.methods.tiny import normal


def matrix(values, rows, columns, seed=0):
    """Return a matrix with these singular values."""
    U, V = (torch.linalg.qr(normal(n, len(values), seed=seed + n))[0] for n in (rows, columns))
    return U @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ V.T


@pytest.mark.parametrize("energy", [0.3, 0.8, 0.95, 0.98, 0.9999])
def test_the_rank_is_the_smallest_that_keeps_the_energy(energy):
    message = packed(w := matrix([9.0, 4.0, 2.0, 1.0, 0.1], 30, 20), energy)
    U, s, V = np.linalg.svd(w.numpy(), full_matrices=False)
    shares = [(s[:r] ** 2).sum() / (s**2).sum() for r in range(1, 6)]
    r = next(i for i, share in enumerate(shares, 1) if share >= energy)
    assert len(message) == r * (30 + 20 + 1)
    expected = torch.from_numpy(U[:, :r] @ np.diag(s[:r]) @ V[:r])
    assert_close(unpacked(message, 30, 20), expected, rtol=1e-10, atol=1e-12)


def test_the_rank_is_at_least_one_and_at_most_the_number_of_singular_values():
    assert rank_of(torch.tensor([3.0, 0.0]), 1e-6) == 1
    assert rank_of(torch.tensor([3.0, 2.0]), 1.0) == 2
    assert rank_of(torch.zeros(4), 0.95) == 1


def test_a_matrix_that_needs_its_full_rank_is_sent_unchanged():
    """An untrained head of ten classes is an example."""
    w = torch.linalg.qr(normal(10, 10))[0]
    assert torch.equal(unpacked(packed(w, 0.95), 10, 10), w)


@pytest.mark.parametrize("rows, columns", [(1, 7), (7, 1), (1, 1), (2, 2), (2, 3)])
def test_a_matrix_whose_factors_are_not_shorter_is_sent_unchanged(rows, columns):
    w = normal(rows, 1) @ normal(1, columns, seed=1)
    assert torch.equal(packed(w, 0.5), w.reshape(-1))
    assert torch.equal(unpacked(packed(w, 0.5), rows, columns), w)


def test_a_matrix_of_zeros_has_rank_one():
    assert len(packed(torch.zeros(9, 8), 0.95)) == 18
    assert torch.equal(unpacked(packed(torch.zeros(9, 8), 0.95), 9, 8), torch.zeros(9, 8))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_matrix_with_nan_or_infinity_is_sent_as_values_that_the_receiver_refuses(value):
    w = torch.full((9, 8), value)
    assert not packed(w, 0.95).isfinite().any() and len(packed(w, 0.95)) == 72


def test_numbers_returns_the_length_of_the_message():
    for energy in (0.3, 0.95, 1.0):
        w = matrix([9.0, 4.0, 2.0, 1.0, 0.1], 8, 11)
        rank = rank_of(torch.linalg.svdvals(w), energy)
        assert numbers(8, 11, rank) == len(packed(w, energy))


def test_factors_that_are_not_unit_vectors_cannot_increase_the_matrix():
    message = torch.full((20 + 30 + 1,), 1e6)
    assert unpacked(message, 20, 30).abs().max() <= 1e6
