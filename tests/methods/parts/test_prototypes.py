"""Tests of the prototype table that methods share, against loops over classes and samples."""

from types import SimpleNamespace

import pytest
import torch

from protofleet.methods.contract.wants import problem_with
from protofleet.methods.nets.catalog import build
from protofleet.methods.parts.prototypes import (
    SeenFeatures,
    held_row_wants,
    held_rows,
    known_rows,
    margin_figures,
    table_of,
)

CLASSES, SIZE = 4, 16


@pytest.fixture
def model():
    return build("mlp", classes=CLASSES, image=(3, 8, 8))


@pytest.fixture
def features():
    dice = torch.Generator().manual_seed(1)
    return SimpleNamespace(z=torch.randn(30, SIZE, generator=dice), y=torch.randint(3, (30,), generator=dice))


def test_features_added_in_batches_have_the_class_means_of_all_samples(model, features):
    seen = SeenFeatures(model)
    for z, y in zip(features.z.split(7), features.y.split(7), strict=True):
        seen.add(z, y)
    for label in range(3):
        own = [row.double() for row, y in zip(features.z, features.y.tolist(), strict=True) if y == label]
        torch.testing.assert_close(seen.means()[label], sum(own) / len(own))
        assert seen.counts[label] == len(own)
    assert seen.counts[3] == 0
    seen.clear()
    assert not seen.counts.any() and not seen.sums.any()


def test_a_device_sends_rows_for_its_classes_and_they_fit_the_wanted_rows(model):
    means, counts = torch.arange(float(CLASSES * SIZE)).reshape(CLASSES, SIZE), torch.tensor([2, 0, 1, 0])
    sent = held_rows(means, counts)
    assert sent["labels"].tolist() == [0, 2] and sent["counts"].tolist() == [2, 1]
    assert torch.equal(sent["prototypes"], torch.stack([means[0], means[2]]))
    assert problem_with(held_row_wants(model, 100.0), sent, examples=3) is None
    assert "above 40" in str(problem_with(held_row_wants(model, 40.0), sent, examples=3))
    assert "2 examples" in str(problem_with(held_row_wants(model), sent, examples=2))


def test_a_table_is_the_same_after_conversion_to_rows_and_back(model):
    prototypes, known = torch.randn(CLASSES, SIZE), torch.tensor([True, False, True, True])
    back, mask = table_of(known_rows(prototypes, known), model)
    assert torch.equal(mask, known) and torch.equal(back[known], prototypes[known])
    assert known_rows(prototypes, torch.zeros(CLASSES, dtype=torch.bool)) == {}
    assert not table_of({}, model)[1].any()


def test_margin_figures_contains_the_margin_of_each_class_and_their_mean():
    found = margin_figures(torch.tensor([[0.0, 0.0], [3.0, 4.0], [3.0, 5.0]]))
    assert found == pytest.approx(
        {"margin.0": 5.0, "margin.1": 1.0, "margin.2": 1.0, "margin.mean": 7 / 3}, rel=1e-4
    )
