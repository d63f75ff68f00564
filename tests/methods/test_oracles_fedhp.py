"""Tests of FedHP's formulas against vectors that were computed in NumPy, independently of this code."""

from __future__ import annotations

import torch
from torch.testing import assert_close

from protofleet.methods.maths.geometry import distances, unit
from protofleet.methods.parts.hyperspheres import (
    aggregate,
    aggregate_as_printed,
    cosine_distance,
    distance_cross_entropy,
    nearness,
    shares,
    uniformity,
)
from tests.methods.test_oracles import case, check, gradient, leaf


def test_distance_cross_entropy_equals_the_oracle():
    given, expected = case("fedhp.ld")
    z, y, prototypes = given["embeddings"], given["labels"], leaf(given["prototypes"])
    loss = distance_cross_entropy(z, y, prototypes)
    check(
        expected,
        distances=distances(z, prototypes),
        per_sample=distance_cross_entropy(z, y, prototypes, reduction="none"),
        loss=loss,
        grad_wrt_prototypes=gradient(loss, prototypes),
    )


def test_uniformity_equals_the_oracle():
    given, expected = case("fedhp.lu")
    M = nearness(given["P"])
    check(
        expected,
        M=M,
        row_max=uniformity(given["P"], reduction="none"),
        argmax=M.argmax(dim=1).double(),
        loss=uniformity(given["P"]),
        hpn_original_value=uniformity(given["P"]) + 1,
    )


def test_uniformity_of_normalised_rows_equals_the_oracle():
    given, expected = case("fedhp.lu.normalise_first")
    P = unit(given["P_raw"])
    check(expected, P=P, loss=uniformity(P))


def test_cosine_distance_equals_the_oracle():
    given, expected = case("fedhp.lh")
    anchors, prototypes = given["anchors"], given["prototypes"]
    check(
        expected,
        cos=1 - cosine_distance(anchors, prototypes, reduction="none"),
        sum=cosine_distance(anchors, prototypes),
        mean=cosine_distance(anchors, prototypes, reduction="mean"),
    )


def test_the_total_loss_of_fedhp_equals_the_oracle():
    given, expected = case("fedhp.total")
    entropy = distance_cross_entropy(given["embeddings"], given["labels"], given["prototypes"])
    total, mean = (
        cosine_distance(given["anchors"], given["prototypes"], reduction=how) for how in ("sum", "mean")
    )
    check(expected, loss=entropy + given["lam"] * total, loss_with_mean_LH=entropy + given["lam"] * mean)


def test_the_aggregation_of_fedhp_equals_the_oracle():
    given, expected = case("fedhp.aggregate")
    pieces = list(zip(given["client_prototypes"], given["counts"], strict=True))
    previous = given["previous_global"]
    check(
        expected,
        weights=torch.stack([shares(counts) for _, counts in pieces]),
        recommended=aggregate(pieces, previous),
        paper_literal=aggregate_as_printed(pieces, previous),
        count_weighted=aggregate(pieces, previous, by_counts=True),
    )


def test_equation_5_as_printed_shrinks_the_prototypes():
    given, expected = case("fedhp.aggregate.shrink")
    C = given["classes"]
    scaled = printed = torch.eye(C, dtype=torch.float64) * given["all_prototypes_norm"]
    for wanted in expected["norm_after"]:
        counts = torch.full((C,), 7)
        printed = aggregate_as_printed([(printed, counts)] * given["clients"], printed)
        scaled = aggregate([(scaled, counts)] * given["clients"], scaled)
        assert_close(printed.norm(dim=1), wanted.expand(C), rtol=1e-8, atol=1e-8)
    assert_close(scaled, torch.eye(C, dtype=torch.float64))
