"""Tests of distances, directions and losses against simpler computations: loops and gradients."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from protofleet.methods.maths.anchors import anchor_cross_entropy, compactness, separation
from protofleet.methods.maths.geometry import distances, margins, squared_distances, unit
from protofleet.methods.maths.means import class_means
from protofleet.methods.maths.proximity import prototype_mse, proximal
from tests.methods.tiny import normal, tiny

# Distances and directions


def test_distances_are_euclidean():
    x, centres = normal(7, 5), normal(3, 5, seed=1)
    assert_close(distances(x, centres), torch.cdist(x, centres))
    assert_close(squared_distances(x, centres), torch.cdist(x, centres).square())


def test_a_sample_at_its_centre_has_a_finite_gradient():
    x = normal(2, 5, dtype=torch.float32).requires_grad_()
    found = distances(x, x.detach())
    found.sum().backward()
    assert found.diagonal().max() < 1e-5 and x.grad.isfinite().all()


def test_distances_of_features_near_a_centre_are_never_nan():
    """x^2 - 2 x c + c^2 fails here in 811 of 2000 trials."""
    centre = normal(1, 64, dtype=torch.float32)
    close = centre + 1e-4 * normal(2000, 64, seed=1, dtype=torch.float32)
    assert_close(distances(close, centre), (close - centre).norm(dim=1, keepdim=True), rtol=1e-3, atol=1e-6)


def test_unit_rows_have_length_one_and_zero_rows_stay_zero():
    x = torch.stack(
        [normal(4), torch.zeros(4, dtype=torch.float64), 1e-9 * normal(4, seed=1)]
    ).requires_grad_()
    found = unit(x)
    found.sum().backward()
    assert_close(found.norm(dim=1), torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64))
    assert x.grad.isfinite().all() and x.grad[1].abs().max() <= 1.0
    assert_close(found[0], F.normalize(x[0], dim=0))


def test_a_margin_is_the_distance_to_the_nearest_other_point():
    points = normal(5, 3)
    expected = [
        min(float((p - q).norm()) for j, q in enumerate(points) if j != i) for i, p in enumerate(points)
    ]
    assert_close(margins(points), torch.tensor(expected, dtype=torch.float64))


# Losses


def test_the_gradient_of_the_proximal_term_is_the_difference_of_the_weights():
    """d/dw of |w - a|^2 / 2 is w - a; three public repos forget the square."""
    model, anchor = tiny(1, norm=True), {k: v.detach() for k, v in tiny(2, norm=True).named_parameters()}
    proximal(model, anchor).backward()
    for name, w in model.named_parameters():
        assert_close(w.grad, w.detach() - anchor[name])


def test_prototype_mse_leaves_out_samples_of_unknown_classes():
    z, y = normal(6, 4), torch.tensor([0, 1, 2, 2, 0, 1])
    prototypes, known = normal(3, 4, seed=1), torch.tensor([True, False, True])
    expected = torch.stack([(a - prototypes[c]) ** 2 for a, c in zip(z, y, strict=True) if known[c]]).mean()
    prototypes[1] = math.nan
    assert_close(prototype_mse(z, y, prototypes, known), expected)


def test_prototype_mse_without_known_classes_is_zero_and_has_a_gradient():
    z = normal(2, 4).requires_grad_()
    loss = prototype_mse(z, torch.tensor([0, 1]), torch.zeros(3, 4), torch.zeros(3, dtype=torch.bool))
    loss.backward()
    assert float(loss.detach()) == 0.0 and not z.grad.any()


def test_separation_is_the_log_of_a_mean_over_the_other_anchors():
    anchors, tau = unit(normal(4, 3)), 0.3
    rows = [
        math.log(sum(math.exp(float(a @ b) / tau) for j, b in enumerate(anchors) if j != i) / 3)
        for i, a in enumerate(anchors)
    ]
    assert_close(separation(anchors, tau, reduction="none"), torch.tensor(rows, dtype=torch.float64))
    assert_close(float(separation(anchors, tau)), sum(rows) / 4)


def test_tau_changes_the_gradient_of_separation_only_with_tau_inside():
    def gradient(tau, inside):
        anchors = unit(normal(4, 3)).requires_grad_()
        return torch.autograd.grad(separation(anchors, tau, tau_inside=inside), anchors)[0]

    assert_close(gradient(0.1, False), gradient(0.5, False))
    assert not torch.allclose(gradient(0.1, True), gradient(0.5, True), rtol=0.1)


def test_separation_is_lowest_for_a_simplex():
    """C unit anchors whose cosines are all -1/(C-1): mean cosine inside exp, by Jensen."""
    corners = unit(torch.eye(4, dtype=torch.float64) - 0.25)
    assert_close(float(separation(corners, 0.2)), -1 / 3 / 0.2)
    for seed in range(20):
        assert separation(unit(normal(4, 4, seed=seed)), 0.2) > -1 / 3 / 0.2


def test_compactness_is_the_negative_log_likelihood_of_the_anchor_of_the_class():
    h, y, anchors, tau = unit(normal(5, 3)), torch.tensor([0, 1, 2, 1, 0]), unit(normal(3, 3, seed=1)), 0.2
    rows = []
    for a, c in zip(h, y, strict=True):
        weights = [math.exp(float(a @ b) / tau) for b in anchors]
        rows.append(-math.log(weights[c] / sum(weights)))
    assert_close(compactness(h, y, anchors, tau, reduction="none"), torch.tensor(rows, dtype=torch.float64))
    assert_close(float(compactness(h, y, anchors, tau)), sum(rows) / 5)


def test_anchor_cross_entropy_gives_anchor_i_the_label_i():
    head, anchors = nn.Linear(4, 3).double(), normal(3, 4)
    rows = [-head(anchors[i]).log_softmax(0)[i] for i in range(3)]
    assert_close(anchor_cross_entropy(head, anchors), torch.stack(rows).mean())


@pytest.mark.parametrize(
    "loss",
    [
        lambda z: separation(unit(z), 0.2),
        lambda z: compactness(unit(z), torch.tensor([0, 1, 2]), unit(normal(3, 4, seed=3)), 0.2),
        lambda z: prototype_mse(
            z, torch.tensor([0, 1, 2]), normal(3, 4, seed=3), torch.tensor([True, True, False])
        ),
        lambda z: class_means(z, torch.tensor([0, 2, 2]), 3)[0],
        lambda z: distances(z, normal(3, 4, seed=3)),
    ],
    ids=["separation", "compactness", "prototype_mse", "class_means", "distances"],
)
def test_gradients_match_central_differences(loss):
    assert torch.autograd.gradcheck(loss, normal(3, 4).requires_grad_())
