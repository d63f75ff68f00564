"""Tests of FedPLCC's and FINCH's formulas against the vectors of oracles.json."""

from __future__ import annotations

import pytest
import torch

from protofleet.methods.maths.contrast import corrected, own_mean, sparse_similarity, top_k, weighted_contrast
from protofleet.methods.maths.finch import finch_star, first_neighbours, levels, partition
from protofleet.methods.maths.geometry import unit
from tests.methods.test_oracles import CASES, case, check, gradient, leaf

FLOAT = torch.float64


def raw(name):
    return CASES[name]["inputs"], CASES[name]["expected"]


def flat(by_class):
    """Return all rows of {"0": rows, "1": rows}, and their labels."""
    rows = [torch.tensor(v, dtype=FLOAT) for v in by_class.values()]
    labels = torch.cat([torch.full((len(v),), int(c)) for c, v in zip(by_class, rows, strict=True)])
    return torch.cat(rows), labels


def given(name):
    """Return features (a leaf), labels, similarity, prototypes' labels, normalised weights, and the whole case."""
    i, expected = raw(name)
    z, y = leaf(torch.tensor(i["features"])), torch.tensor(i["labels"])
    G, labels = flat(i["prototypes"])
    counts, _ = flat(i["counts"])
    W = torch.cat([counts[labels == c] / counts[labels == c].sum() for c in labels.unique()])
    return z, y, sparse_similarity(z, G, i["alpha"]), labels, W, i, expected


def test_weights_sum_to_one_in_each_class():
    *_, W, _, _ = given("fedplcc.contra")
    expected, _ = flat(raw("fedplcc.weights")[1]["W"])
    check({"W": expected}, W=W)


def test_cosines_and_their_roots_equal_the_oracle():
    z, _, s, _, _, i, expected = given("fedplcc.cosines")
    G, _ = flat(i["prototypes"])
    rows = {key: torch.stack([flat(row)[0] for row in expected[key]]) for key in ("cos", "s_alpha")}
    check(rows, cos=unit(z) @ unit(G).T, s_alpha=s)


def test_the_weighted_contrast_equals_the_oracle():
    z, y, s, labels, W, i, expected = given("fedplcc.contra")
    losses = weighted_contrast(s, y, labels, W, i["tau"])
    loss = own_mean(losses)
    check(expected, per_sample=losses, loss=loss, grad_wrt_features_numeric=gradient(loss, z))


def test_the_corrected_loss_equals_the_oracle():
    z, y, s, labels, W, i, expected = given("fedplcc.corr")
    losses = corrected(s, y, labels, W, i["phi"])
    loss = own_mean(losses)
    own = torch.nn.utils.rnn.pad_sequence(
        [(s * W)[b, labels == c] for b, c in enumerate(y)], batch_first=True
    )
    for row, products in zip(own, expected["products"], strict=True):
        check({"p": products}, p=row[: len(products)])
    check(expected, per_sample=losses, loss=loss, grad_wrt_features_numeric=gradient(loss, z))


def test_the_sum_of_both_losses_equals_the_oracle():
    _, y, s, labels, W, i, expected = given("fedplcc.total")
    contra = own_mean(weighted_contrast(s, y, labels, W, i["tau"]))
    corr = own_mean(corrected(s, y, labels, W, i["phi"]))
    check(expected, loss_without_CE=i["lambda1"] * contra + i["lambda2"] * corr)


@pytest.mark.parametrize("name", ["fedplcc.contra.w1", "fedplcc.corr.w1"])
def test_both_losses_without_weights_equal_the_oracle(name):
    _, y, s, labels, W, i, expected = given(name)
    ones = torch.ones_like(W)
    losses = (
        weighted_contrast(s, y, labels, ones, i["tau"])
        if name == "fedplcc.contra.w1"
        else corrected(s, y, labels, ones, i["phi"])
    )
    check(expected, per_sample=losses, loss=own_mean(losses))


@pytest.mark.parametrize("name", ["fedplcc.corr.phi0.1", "fedplcc.corr.phi1"])
def test_the_corrected_loss_with_other_values_of_phi_equals_the_oracle(name):
    _, y, s, labels, W, i, expected = given(name)
    losses = corrected(s, y, labels, W, i["phi"])
    found = [int(top_k(i["phi"], (labels == c).sum())) for c in y]
    assert found == expected["k"]
    check(expected, per_sample=losses, loss=own_mean(losses))


def test_top_k_is_not_increased_by_rounding_errors():
    i, expected = raw("fedplcc.topk.k")
    assert [int(top_k(phi, torch.tensor(n))) for phi, n in i["pairs"]] == expected["k"]


def test_negative_cosines_give_the_values_of_the_oracle():
    i, expected = raw("fedplcc.negative_cosine")
    z, y = torch.tensor([i["feature"]], dtype=FLOAT), torch.tensor([i["label"]])
    G, labels = flat(i["prototypes"])
    W, _ = flat(i["weights"])
    check({"cos": flat(expected["cos"])[0]}, cos=(unit(z) @ unit(G).T)[0])
    signed = sparse_similarity(z, G, i["alpha"], signed=True)[0]
    check({"s": flat(expected["s_signed"])[0]}, s=signed)
    clamped = sparse_similarity(z, G, i["alpha"])
    held_at_zero = torch.where(clamped > 1.1e-6 ** i["alpha"], clamped, 0.0)
    check({"s": flat(expected["s_clamped"])[0]}, s=held_at_zero[0])
    contra = own_mean(weighted_contrast(clamped, y, labels, W, i["tau"]))
    at_zero = own_mean(weighted_contrast(held_at_zero, y, labels, W, i["tau"]))
    corr = own_mean(corrected(held_at_zero, y, labels, W, i["phi"]))
    check(expected, contra_clamped_at_1em6=contra, contra_clamped_at_0=at_zero, corr_clamped_at_0=corr)


def test_finch_star_equals_the_oracle():
    i, expected = case("fedplcc.finch_star")
    plain, weights = finch_star(i["local_prototypes"], i["local_weights"])
    weighted, _ = finch_star(i["local_prototypes"], i["local_weights"], weighted_centroid=True)
    assert partition(i["local_prototypes"]).tolist() == expected["labels"].tolist()
    check(
        expected, weights=weights, weights_normalised=weights / weights.sum(),
        centroids_unweighted=plain, centroids_weighted=weighted,
    )  # fmt: skip


@pytest.mark.parametrize(
    "name",
    ["finch.one_level", "finch.two_levels", "finch.single", "finch.pair", "finch.triple", "finch.order"],
)
def test_finch_equals_the_oracle(name):
    i, expected = raw(name)
    rows = torch.tensor(i["X"], dtype=FLOAT)
    found = [level.tolist() for level in levels(rows.numpy())] if len(rows) > 1 else [[0]]
    assert len(found) == len(expected["partitions"]) == len(expected["num_clusters"])
    for level, wanted in zip(found, expected["partitions"], strict=True):
        assert len(set(zip(level, wanted, strict=True))) == len(set(level)) == len(set(wanted))
    if len(rows) > 1:
        assert first_neighbours(rows.numpy()).tolist() == expected["first_neighbour"]
    labels = partition(rows)
    assert len(set(zip(labels.tolist(), expected["final_labels"], strict=True))) == len(labels.unique())
    means, weights = finch_star(rows, torch.ones(len(rows), dtype=FLOAT))
    check(expected, centroids=means, weights=weights)
