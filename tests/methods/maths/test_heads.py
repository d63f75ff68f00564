"""Tests of heads in closed form, against plainer computations with numpy."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from protofleet.methods.maths.heads import penalised, solved, unit_rows


def gram(rows, size, scale=1.0):
    x = scale * np.random.default_rng(rows).normal(size=(rows, size))
    return x, x.T @ x


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e30])
@pytest.mark.parametrize("rows", [3, 50])
def test_a_head_is_the_shortest_least_squares_solution_at_any_scale(rows, scale):
    x, G = gram(rows, 8, scale)
    y = np.random.default_rng(1).normal(size=(rows, 2))
    found = solved(torch.from_numpy(G), torch.from_numpy(x.T @ y))
    assert_close(found.numpy() * scale, np.linalg.lstsq(x, y)[0] * scale, rtol=1e-9, atol=1e-9)


def test_a_gram_matrix_of_zeros_gives_a_head_of_zeros():
    assert solved(torch.zeros(3, 3).double(), torch.zeros(3, 2).double()).tolist() == [[0, 0]] * 3


def test_a_relative_penalty_is_multiplied_by_the_mean_of_the_diagonal():
    G = torch.tensor([[2.0, 1.0], [1.0, 4.0]]).double()
    assert_close(penalised(G, 0.5), torch.tensor([[3.5, 1.0], [1.0, 5.5]]).double())
    assert_close(penalised(G, 0.5, "absolute", 4.0), torch.tensor([[4.0, 1.0], [1.0, 6.0]]).double())


def test_rows_of_any_length_are_scaled_to_length_1():
    rows = torch.tensor([[3e-200, 4e-200], [0.0, 0.0], [0.0, -7e200]], dtype=torch.float64)
    assert_close(unit_rows(rows), torch.tensor([[0.6, 0.8], [0.0, 0.0], [0.0, -1.0]]).double())
