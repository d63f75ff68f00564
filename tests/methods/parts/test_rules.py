"""Tests of rules: a rule makes the predictions of a method and is a torch module."""

import copy
import io
import math

import pytest
import torch
from torch import nn

from protofleet.methods.maths.geometry import unit
from protofleet.methods.parts.rules import (
    Classifier,
    Gaussians,
    Linear,
    Nearest,
    both_ways,
    nearest_known,
    places_of,
)

CLASSES, SIZE = 4, 6
Z = torch.randn(7, SIZE, generator=torch.Generator().manual_seed(1))
ROWS = torch.randn(5, SIZE, generator=torch.Generator().manual_seed(2))
LABELS = torch.tensor([2, 0, 2, 3, 2])  # No row has class 1.
BY_HAND = {
    "squared": lambda z, row: -float((z - row).square().sum()),
    "euclidean": lambda z, row: -float((z - row).norm()),
    "cosine": lambda z, row: float(torch.cosine_similarity(z, row, dim=0)),
}


@pytest.mark.parametrize("metric", BY_HAND)
def test_the_score_of_a_class_is_that_of_its_nearest_row(metric):
    rows = unit(ROWS) if metric == "cosine" else ROWS
    scores = Nearest(rows, LABELS, CLASSES, metric)(Z)
    for z, found in zip(Z, scores.tolist(), strict=True):
        near = [BY_HAND[metric](z, row) for row in rows]
        assert found == pytest.approx([near[1], -math.inf, max(near[0], near[2], near[4]), near[3]], rel=1e-5)


def test_a_class_without_rows_is_never_chosen_and_its_score_may_be_finite():
    scores = Nearest(unit(ROWS), LABELS, CLASSES, "cosine", missing=-2.0)(Z)
    assert (scores[:, 1] == -2.0).all() and not (scores.argmax(1) == 1).any()
    nothing = Nearest(ROWS[:0], LABELS[:0], CLASSES, "cosine")(Z)
    assert nothing.shape == (7, CLASSES) and (nothing == -math.inf).all()


def test_nearest_known_chooses_the_nearest_of_the_known_classes():
    table, known = torch.randn(CLASSES, SIZE), torch.tensor([True, False, True, True])
    scores = nearest_known(table, known, "squared")(Z)
    for z, found in zip(Z, scores, strict=True):
        distances = {c: float((z - table[c]).square().sum()) for c in (0, 2, 3)}
        assert int(found.argmax()) == min(distances, key=distances.get) and found[1] == -math.inf


def test_a_classifier_scores_embeddings_or_their_directions():
    head = nn.Linear(SIZE, CLASSES)
    assert torch.equal(Classifier(head)(Z), head(Z))
    assert torch.allclose(Classifier(head, sphere=True)(3 * Z), head(unit(Z)), atol=1e-6)


@pytest.mark.parametrize("normalised", [True, False])
def test_a_linear_rule_scores_the_known_classes_and_never_chooses_another(normalised):
    weight, bias = ROWS[:CLASSES], torch.tensor([0.5, 9.0, -1.0, 0.0])
    known = torch.tensor([True, False, True, True])
    scores = Linear(weight, bias, known, normalised=normalised)(Z)
    for z, found in zip(Z.double(), scores.tolist(), strict=True):
        seen = z * math.sqrt(SIZE) / z.norm() if normalised else z
        by_hand = [float(seen @ row.double()) + b for row, b in zip(weight, bias.tolist(), strict=True)]
        assert found == pytest.approx([by_hand[0], -math.inf, *by_hand[2:]], rel=1e-5)


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("matrices", [True, False])
def test_gaussians_score_by_the_squared_distance_and_never_choose_an_unknown_class(matrices, normalised):
    offsets = torch.tensor([0.5, -math.inf, 2.0, 0.0])
    scales = torch.rand(CLASSES, *([SIZE] * (1 + matrices)), generator=torch.Generator().manual_seed(3))
    scores = Gaussians(ROWS[:CLASSES], scales, offsets, normalised=normalised)(Z)
    for z, found in zip(Z, scores, strict=True):
        seen = z * math.sqrt(SIZE) / z.norm() if normalised else z
        for mean, scale, offset, score in zip(ROWS, scales, offsets, found, strict=False):
            square = sum(
                float(sum((seen - mean) * scale[:, j]) if matrices else (seen - mean)[j] * scale[j]) ** 2
                for j in range(SIZE)
            )
            assert float(score) == pytest.approx(float(offset) - square / 2, rel=1e-4)


def test_a_rule_has_a_copy_of_its_rows():
    rows = ROWS.clone()
    rule = nearest_known(rows, torch.ones(5, dtype=torch.bool), "squared")
    before = rule(Z)
    rows.zero_()
    assert torch.equal(rule(Z), before)


@pytest.mark.parametrize(
    "rule",
    [
        Nearest(ROWS, LABELS, CLASSES, "euclidean"),
        Classifier(nn.Linear(SIZE, CLASSES), sphere=True),
        Linear(ROWS[:CLASSES], ROWS[0, :CLASSES], LABELS[:CLASSES] > 0, normalised=True),
        Gaussians(ROWS[:CLASSES], ROWS[:CLASSES], ROWS[0, :CLASSES], normalised=True),
    ],
)
def test_a_rule_is_stored_and_loaded_like_any_module(rule):
    file = io.BytesIO()
    torch.save(rule.state_dict(), file)
    other = copy.deepcopy(rule)
    for value in other.state_dict().values():
        value.zero_()
    assert not torch.equal(other(Z), rule(Z))
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other(Z), rule(Z))


def test_places_of_fills_unused_places_with_the_number_of_rows():
    assert places_of(LABELS, CLASSES).tolist() == [[1, 5, 5], [5, 5, 5], [0, 2, 4], [3, 5, 5]]


def test_both_ways_use_the_head_until_a_prototype_is_known():
    head, table = nn.Linear(SIZE, CLASSES), torch.randn(CLASSES, SIZE)
    nothing, some = torch.zeros(CLASSES, dtype=torch.bool), torch.tensor([True, False, True, True])
    assert both_ways(head, table, nothing) == {"prototype": head, "classifier": head}
    both = both_ways(head, table, some)
    assert both["classifier"] is head and list(both) == ["prototype", "classifier"]
    assert torch.equal(both["prototype"](Z), nearest_known(table, some, "squared")(Z))
