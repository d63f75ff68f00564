"""Tests of factors of second moments, of rows in 8 bits, and of errors on devices that are left out."""

import pytest
import torch
from torch.testing import assert_close

from protofleet.methods.maths.left_out import (
    Moments,
    errors_of_penalties,
    factor,
    ridge,
    squared_error,
)
from protofleet.methods.maths.rounded_rows import room, rounded_rows, rows_of
from tests.methods.tiny import normal

EXACT = {"rtol": 1e-9, "atol": 1e-9}
W, CLASSES = 7, 3


def dice(seed=0):
    return torch.Generator().manual_seed(seed)


def data(n=30, seed=0):
    y = torch.arange(n) % CLASSES
    x = normal(n, W, seed=seed) + torch.eye(W, dtype=torch.float64)[y]
    return x, 2 * torch.eye(CLASSES, dtype=torch.float64)[y] - 1


def moments(x, y):
    return Moments(x.T @ x, x.T @ y, float(len(x)))


@pytest.mark.parametrize("n, rank", [(30, 7), (5, 7), (30, 3), (5, 3), (0, 2)])
def test_a_factor_is_the_best_of_its_rank_and_its_tail_keeps_the_trace(n, rank):
    x, _ = data(n)
    found, tail = factor(x, rank)
    approximated = found.T @ found + tail * torch.eye(W, dtype=torch.float64)
    values, directions = torch.linalg.eigh(x.T @ x)
    kept = directions[:, -rank:] @ torch.diag(values[-rank:]) @ directions[:, -rank:].T
    assert found.shape == (rank, W) and tail.shape == (1,)
    assert_close(found.T @ found, kept, **EXACT)
    assert_close(approximated.trace(), (x.T @ x).trace(), **EXACT)


def test_rounded_numbers_differ_by_at_most_a_level_and_are_right_on_average():
    rows = normal(3, 50, seed=1) * torch.tensor([[1e-4], [1.0], [1e4]])
    total = torch.zeros_like(rows)
    for seed in range(400):
        codes, scales = rounded_rows(rows, dice(seed))
        found = rows_of(codes, scales)
        levels = scales.double().unsqueeze(1) / 127
        assert codes.dtype == torch.uint8 and scales.dtype == torch.float32 and int(codes.min()) >= 1
        assert bool(((found - rows).abs() <= 1.0001 * levels).all())
        total += found
    assert_close(scales.double(), rows.abs().amax(dim=1), rtol=1e-7, atol=0)
    assert bool(((total / 400 - rows).abs() < 0.12 * levels).all())


def test_a_row_of_zeros_stays_zero_and_the_largest_numbers_of_a_row_are_exact():
    codes, scales = rounded_rows(torch.tensor([[0.0, 0.0], [-2.0, 2.0]]), dice())
    assert rows_of(codes, scales).tolist() == [[0.0, 0.0], [-2.0, 2.0]] and scales.tolist() == [0.0, 2.0]


def test_rounding_increases_a_norm_by_at_most_its_stated_factor():
    for seed in range(50):
        rows = normal(4, 40, seed=seed) ** 5
        found = rows_of(*rounded_rows(rows, dice(seed)))
        assert bool((found.norm(dim=1) <= room(40) * rows.norm(dim=1)).all())


def test_the_error_computed_from_sums_equals_the_error_on_the_samples():
    x, y = data()
    head = normal(W, CLASSES, seed=3)
    assert squared_error(head, moments(x, y)) == pytest.approx(float((x @ head - y).square().sum()), rel=1e-9)


def test_the_error_of_a_penalty_is_that_of_ridge_regression_on_the_other_samples():
    (x, y), (own, targets), penalties = data(), data(11, seed=5), [0.1, 3.0, 500.0]
    found = list(errors_of_penalties(moments(x, y), moments(own, targets), penalties))
    for penalty, error in zip(penalties, found, strict=True):
        rows = torch.cat([x, penalty**0.5 * torch.eye(W, dtype=torch.float64)])
        head = torch.linalg.lstsq(rows, torch.cat([y, torch.zeros(W, CLASSES, dtype=torch.float64)])).solution
        assert error == pytest.approx(float((own @ head - targets).square().sum()), rel=1e-9)
        assert_close(ridge(moments(x, y), penalty), head, **EXACT)


def test_moments_of_one_device_can_be_subtracted_from_the_moments_of_all():
    (x, y), (own, targets) = data(), data(11, seed=5)
    whole = moments(x, y) + moments(own, targets)
    others = whole - moments(own, targets)
    assert_close(others.gram, x.T @ x, **EXACT)
    assert_close(others.products, x.T @ y, **EXACT)
    assert others.samples == 30.0
    assert whole.unit == pytest.approx(float(torch.cat([x, own]).square().sum()) / 41 / 513, rel=1e-9)
