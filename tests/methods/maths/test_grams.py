"""Tests of triangles and of the head that AFL's recursion makes."""

import pytest
import torch
from torch.testing import assert_close

from protofleet.methods.maths.grams import (
    gram,
    symmetric_of,
    triangle_of,
    triangle_size,
    unit_classes,
    upper_of,
    with_constant,
)
from protofleet.methods.maths.heads import penalised, solved
from tests.methods.tiny import normal

EXACT = {"rtol": 1e-9, "atol": 1e-9}
Y = torch.tensor([0, 1, 2, 0, 1, 1, 2, 0] * 4)
X = normal(len(Y), 6, seed=1) + 2 * torch.eye(6, dtype=torch.float64)[Y]
ONE_HOT = torch.eye(3, dtype=torch.float64)[Y]


def test_a_triangle_contains_the_rows_of_the_upper_half_one_after_the_other():
    matrix = torch.tensor([[1.0, 2.0, 3.0], [2.0, 4.0, 5.0], [3.0, 5.0, 6.0]])
    triangle = triangle_of(matrix)
    assert triangle.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0] and triangle_size(3) == 6
    assert torch.equal(symmetric_of(triangle, 3), matrix)
    assert upper_of(triangle, 3).tolist() == [[1.0, 2.0, 3.0], [0.0, 4.0, 5.0], [0.0, 0.0, 6.0]]


def test_the_gram_matrix_with_a_constant_feature_contains_the_sums_and_the_count():
    G = gram(with_constant(X.float()))
    assert G.dtype == torch.float64 and float(G[6, 6]) == len(X)
    assert_close(G[6, :6], X.float().double().sum(dim=0), **EXACT)


def test_several_matrices_become_several_triangles():
    matrices = torch.stack([gram(normal(5, 4, seed=seed)) for seed in range(3)])
    assert triangle_of(matrices).shape == (3, 10)
    assert torch.equal(symmetric_of(triangle_of(matrices), 4), matrices)


def afl(shards, gamma):
    """Return AFL's head: devices send solved heads, and the server joins two of them at a time."""
    eye, joined, total = torch.eye(6, dtype=torch.float64), None, None
    for x, y in shards:
        own = x.T @ x + gamma * eye
        head = torch.linalg.solve(own, x.T @ y)
        if joined is None:
            joined, total = head, own
        else:
            joined = torch.linalg.solve(total + own, total @ joined + own @ head)
            total = total + own
    clean = total - len(shards) * gamma * eye
    return joined, torch.linalg.solve(clean, total @ joined)


@pytest.mark.parametrize("gamma", [0.1, 1.0])
def test_the_recursion_of_afl_equals_ridge_and_its_cleaned_head_equals_least_squares(gamma):
    parts = [slice(0, 3), slice(3, 14), slice(14, None)]  # The first device has fewer samples than features.
    joined, cleaned = afl([(X[part], ONE_HOT[part]) for part in parts], gamma)
    G, targets = gram(X), X.T @ ONE_HOT
    assert_close(solved(penalised(G, 3 * gamma, "absolute"), targets), joined, **EXACT)
    assert_close(solved(penalised(G, 0.0), targets), cleaned, **EXACT)
    assert_close(cleaned, torch.linalg.lstsq(X, ONE_HOT).solution, **EXACT)


def test_unit_classes_scales_each_row_to_length_one_without_its_bias():
    head = normal(3, 7)
    head[2] = 0.0
    found = unit_classes(head, 6)
    for row, own in zip(found[:2], head[:2], strict=True):
        assert_close(row, own / float(own[:6].norm()))
    assert torch.equal(found[2], torch.zeros(7, dtype=torch.float64))
    no_weights = torch.tensor([[0.0, 0.0, 1e-6]], dtype=torch.float64)
    assert_close(unit_classes(no_weights, 2), torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64))
