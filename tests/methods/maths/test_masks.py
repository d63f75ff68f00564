"""Tests of the dimensions that classes own: each has equally many owners, and no two classes own the same."""

import pytest
import torch

from protofleet.methods.contract.base import seeded
from protofleet.methods.maths.masks import owned_dimensions


@pytest.mark.parametrize(
    ("classes", "size", "ones"),
    [(10, 512, 1), (2, 2, 1), (3, 7, 2), (4, 9, 2), (6, 6, 3), (6, 6, 4), (30, 64, 15), (100, 100, 10)],
)
def test_classes_own_different_sets_and_each_dimension_in_use_has_equally_many_owners(classes, size, ones):
    found = owned_dimensions(classes, size, ones, seeded(1))
    step = size // classes
    assert found.shape == (classes, ones * step)
    assert len({tuple(row) for row in found.tolist()}) == classes
    assert all(row == sorted(set(row)) for row in found.tolist())
    owners = found.flatten().bincount(minlength=size)
    assert owners.tolist() == [ones] * (classes * step) + [0] * (size - classes * step)


def test_the_masks_depend_only_on_the_generator():
    one, again, other = (owned_dimensions(20, 60, 4, seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(one, again) and not torch.equal(one, other)


def test_sets_of_several_chunks_have_few_dimensions_in_common():
    found = owned_dimensions(100, 100, 10, seeded(1))
    owns = torch.zeros(100, 100).scatter_(1, found, 1.0)
    common = (owns @ owns.T).fill_diagonal_(0)
    assert common.max() <= 3, "neighbours would have 9 in common, and random sets 1 on average"
