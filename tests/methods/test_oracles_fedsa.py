"""Tests of FedSA's formulas against loops and against vectors that NumPy computed independently of this code."""

from __future__ import annotations

from itertools import permutations

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from protofleet.methods.maths.margins import (
    AGGREGATE,
    anchor_distance,
    anchor_mse,
    batch_prototypes,
    classifier_calibration,
    client_margin,
    ema,
    margin,
    margin_contrast,
)
from protofleet.methods.maths.means import class_means
from tests.methods.test_oracles import CASES, case, check, gradient, leaf
from tests.methods.tiny import normal

RULES = {
    "recommended_mean_over_pairs": "pairs",
    "paper_literal_over_N_minus_1_squared": "paper",
    "code_mean_of_nearest": "nearest",
}
READINGS = {"recommended": "weighted", "paper_literal": "paper", "code_unweighted": "unweighted"}


def rows_of(by_class):
    """Return rows [J, D] and labels [J] of {"0": row, "2": row}."""
    labels = [int(c) for c in by_class]
    return torch.tensor(list(by_class.values()), dtype=torch.float64), torch.tensor(labels)


def double(value):
    return torch.tensor(value, dtype=torch.float64)


@pytest.mark.parametrize("reading, rule", RULES.items())
def test_margins_equal_the_oracle(reading, rule):
    given, expected = case("fedsa.margins")
    anchors, (local, _) = given["anchors"], rows_of(given["local_prototypes"])
    found = {
        "d_global": margin(anchors, rule),
        "d_local": margin(local, rule),
        "d_star": client_margin(anchors, local, rule),
    }
    for name, value in found.items():
        assert_close(value, double(expected[name][reading]), rtol=1e-8, atol=1e-8)
    for few in (local[:1], local[:0]):
        assert torch.equal(client_margin(anchors, few, rule), margin(anchors, rule))
    assert expected["single_class_client"] == expected["first_round"] == "use d_global"


@pytest.mark.parametrize(
    "name",
    [
        "fedsa.mcl.prototypes.recommended_mean_over_pairs",
        "fedsa.mcl.prototypes.paper_literal_over_N_minus_1_squared",
        "fedsa.mcl.prototypes.code_mean_of_nearest",
    ],
)
def test_the_contrast_of_prototypes_equals_the_oracle(name):
    given, expected = case(name)
    rows, labels = rows_of(given["prototypes"])
    found = {
        name: margin_contrast(rows, labels, given["anchors"], double(given["margin"]), reduction=how)
        for name, how in {"per_class": "none", "mean": "mean", "sum": "sum"}.items()
    }
    check(expected, **found)


def test_the_contrast_of_samples_equals_the_oracle():
    given, expected = case("fedsa.mcl.samples")
    z = leaf(given["features"])
    arguments = z, given["labels"], given["anchors"], double(given["margin"])
    loss = margin_contrast(*arguments)
    check(
        expected,
        per_sample=margin_contrast(*arguments, reduction="none"),
        loss=loss,
        grad_wrt_features_numeric=gradient(loss, z),
    )


def test_the_regularisation_equals_the_oracle():
    given, expected = case("fedsa.reg")
    anchors, (rows, labels) = given["anchors"], rows_of(given["prototypes"])
    means, classes = batch_prototypes(given["features"], given["labels"], len(anchors))
    wanted, held = rows_of(expected["batch_prototypes"])
    assert torch.equal(classes, held)
    assert_close(means, wanted, rtol=1e-8, atol=1e-8)
    check(
        expected,
        paper_sum_of_distances=anchor_distance(rows, labels, anchors),
        per_class=anchor_distance(rows, labels, anchors, reduction="none"),
        paper_on_batch_prototypes=anchor_distance(means, classes, anchors),
        code_mse_on_samples=anchor_mse(given["features"], given["labels"], anchors),
    )


def head_of(given):
    """Return the phi of equation 8 with the bias of the case, or with a bias of 9 in all classes."""
    head = nn.Linear(2, 3, dtype=torch.float64)
    head.load_state_dict({"weight": given["W"], "bias": given.get("b", torch.full((3,), 9.0))})
    return head


@pytest.mark.parametrize("bias, name", [(True, "with_bias"), (False, "without_bias")])
def test_the_calibration_equals_the_oracle(bias, name):
    given, expected = case("fedsa.cc")
    head, anchors = head_of(given), given["anchors"]
    found = {
        name: classifier_calibration(head, anchors, bias=bias),
        f"per_class_{name}": classifier_calibration(head, anchors, bias=bias, reduction="none"),
    }
    check(expected, **found)


@pytest.mark.parametrize("reading, rule", READINGS.items())
def test_the_aggregation_equals_the_oracle(reading, rule):
    given, expected = CASES["fedsa.aggregate"]["inputs"], CASES["fedsa.aggregate"]["expected"]
    pieces = []
    for client in given["clients"]:
        rows, labels = rows_of(client["protos"])
        counts = torch.tensor([client["counts"][str(int(c))] for c in labels])
        pieces.append(class_means(rows, labels, 3, counts))
    means, counts = AGGREGATE[rule](pieces)
    for label, row in expected[reading].items():
        assert (counts[int(label)] > 0) == (row is not None)
        if row is not None:
            assert_close(means[int(label)], double(row), rtol=1e-8, atol=1e-8)


def test_the_moving_average_equals_the_oracle():
    given, expected = case("fedsa.ema")
    rows, labels = rows_of(given["global_protos"])
    means, counts = class_means(rows, labels, 3)
    moved = ema(given["anchors"], means, counts > 0, given["decay"])
    check(expected, anchors=moved)
    assert torch.equal(moved[2], given["anchors"][2])


def test_the_total_loss_of_fedsa_equals_the_oracle():
    given, expected = case("fedsa.total_without_CE")
    anchors, (rows, labels) = given["anchors"], rows_of(given["prototypes"])
    contrast = margin_contrast(rows, labels, anchors, client_margin(anchors, rows, "pairs"))
    loss = (
        given["lambda1"] * anchor_distance(rows, labels, anchors)
        + given["lambda2"] * contrast
        + given["lambda3"] * classifier_calibration(head_of(given), anchors, bias=False)
    )
    check(expected, loss=loss)


# Against loops: margins


def naive_margin(points, rule):
    pairs = [float((p - q).norm()) for p, q in permutations(points, 2)]
    if not pairs:
        return 0.0
    if rule == "nearest":
        near = [
            min(float((p - q).norm()) for j, q in enumerate(points) if j != i) for i, p in enumerate(points)
        ]
        return sum(near) / len(points)
    return sum(pairs) / (len(pairs) if rule == "pairs" else (len(points) - 1) ** 2)


@pytest.mark.parametrize("rule", ["pairs", "nearest", "paper"])
@pytest.mark.parametrize("N", range(6))
def test_margins_are_means_of_distances_between_points_in_each_reading(rule, N):
    points = normal(N, 4)
    assert float(margin(points, rule)) == pytest.approx(naive_margin(points, rule))


def test_the_margin_of_a_device_is_the_larger_of_its_own_and_the_global_margin():
    near, far = normal(3, 4), 10 * normal(3, 4, seed=1)
    assert torch.equal(client_margin(near, far, "pairs"), margin(far, "pairs"))
    assert torch.equal(client_margin(far, near, "pairs"), margin(far, "pairs"))


# Against loops: losses


def naive_contrast(rows, labels, anchors, d):
    losses = []
    for row, c in zip(rows, labels.tolist(), strict=True):
        gaps = [(row - a).norm() + (d if j == c else 0.0) for j, a in enumerate(anchors)]
        losses.append(gaps[c] + torch.stack([-gap for gap in gaps]).exp().sum().log())
    return torch.stack(losses)


def naive_prototypes(z, y):
    labels = sorted(set(y.tolist()))
    return torch.stack([z[y == c].mean(dim=0) for c in labels]), torch.tensor(labels)


def test_the_contrast_is_equation_7_for_each_row():
    rows, labels, anchors = normal(5, 4), torch.tensor([2, 0, 0, 1, 2]), normal(3, 4, seed=1)
    expected = naive_contrast(rows, labels, anchors, 1.5)
    d = torch.tensor(1.5, dtype=torch.float64)
    assert_close(margin_contrast(rows, labels, anchors, d, reduction="none"), expected)
    assert_close(margin_contrast(rows, labels, anchors, d), expected.mean())


def test_a_larger_margin_gives_a_larger_contrast_loss():
    rows, labels, anchors = normal(5, 4), torch.tensor([2, 0, 0, 1, 2]), normal(3, 4, seed=1)
    losses = [float(margin_contrast(rows, labels, anchors, torch.tensor(d))) for d in (0.0, 1.0, 5.0)]
    assert losses == sorted(losses) and losses[0] < losses[2]


def test_prototypes_of_a_batch_are_its_class_means_and_have_gradients():
    z, y = normal(5, 4).requires_grad_(), torch.tensor([2, 0, 0, 2, 2])
    means, labels = batch_prototypes(z, y, 3)
    wanted, held = naive_prototypes(z, y)
    assert_close(means, wanted)
    assert torch.equal(labels, held)
    assert_close(
        torch.autograd.grad(means.sum(), z)[0][:, 0],
        torch.tensor([1 / 3, 1 / 2, 1 / 2, 1 / 3, 1 / 3]).double(),
    )


Y = torch.tensor([0, 2, 2])
LOSSES = {
    "contrast": lambda z, a: margin_contrast(z, Y, a, torch.tensor(2.0)),
    "contrast of prototypes": lambda z, a: margin_contrast(*batch_prototypes(z, Y, 3), a, torch.tensor(2.0)),
    "mse": lambda z, a: anchor_mse(z, Y, a),
    "distance": lambda z, a: anchor_distance(z, Y, a),
    "distance of prototypes": lambda z, a: anchor_distance(*batch_prototypes(z, Y, 3), a),
}
every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)


@every_loss
def test_gradients_match_central_differences(loss):
    anchors = normal(3, 4, seed=3)
    assert torch.autograd.gradcheck(lambda z: loss(z, anchors), normal(3, 4).requires_grad_())


@every_loss
@hypothesis.given(
    size=st.floats(0, 1e4),
    dtype=st.sampled_from([torch.float16, torch.float32, torch.float64]),
    met=st.booleans(),
    alike=st.booleans(),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=40, deadline=None)
def test_losses_and_gradients_are_finite_for_all_features_and_anchors(loss, size, dtype, met, alike, seed):
    anchors = (size * normal(3, 4, seed=seed)).to(dtype)
    if alike:
        anchors[:] = anchors[0]
    start = anchors[Y] if met else (size * normal(3, 4, seed=seed + 1)).to(dtype)
    z = start.clone().requires_grad_()
    found = loss(z, anchors)
    found.backward()
    assert found.isfinite() and z.grad.isfinite().all()
    assert all(client_margin(anchors.float(), start.float(), rule).isfinite() for rule in RULES.values())


def test_the_calibration_is_equation_8_with_or_without_the_bias():
    head, anchors = nn.Linear(4, 3).double(), normal(3, 4)
    for bias in (True, False):
        scores = [head.weight @ a + (head.bias if bias else 0.0) for a in anchors]
        expected = torch.stack([-s.log_softmax(0)[c] for c, s in enumerate(scores)])
        assert_close(classifier_calibration(head, anchors, bias=bias, reduction="none"), expected)


# Against loops: the server's two steps


@hypothesis.given(
    counts=st.lists(st.lists(st.integers(0, 50), min_size=3, max_size=3), min_size=1, max_size=5),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=40, deadline=None)
@pytest.mark.parametrize("reading", ["weighted", "unweighted", "paper"])
def test_aggregation_is_equation_3_in_each_of_its_readings(reading, counts, seed):
    pieces = [(normal(3, 4, seed=seed + i), torch.tensor(own)) for i, own in enumerate(counts)]
    means, found = AGGREGATE[reading](pieces)
    assert means.isfinite().all()
    for c in range(3):
        holders = [(rows[c], int(own[c])) for rows, own in pieces if own[c] > 0]
        assert (found[c] > 0) == bool(holders)
        if not holders:
            continue
        total = sum(n for _, n in holders)
        weights = [1 / len(holders) if reading == "unweighted" else n / total for _, n in holders]
        expected = sum(w * row for w, (row, _) in zip(weights, holders, strict=True))
        assert_close(means[c], expected / len(holders) if reading == "paper" else expected)


def test_anchors_move_a_tenth_of_the_way_in_a_thousand_rounds():
    anchors, P, held = normal(2, 3), normal(2, 3, seed=1), torch.tensor([True, False])
    moved = anchors
    for _ in range(1000):
        moved = ema(moved, P, held, 0.9999)
    assert_close(moved[0], anchors[0] + (1 - 0.9999**1000) * (P[0] - anchors[0]))
    assert torch.equal(moved[1], anchors[1]) and 0.09 < 1 - 0.9999**1000 < 0.1
    assert torch.equal(ema(anchors, P, held, 1.0), anchors)
