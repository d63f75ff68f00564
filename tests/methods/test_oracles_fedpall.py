"""Tests of FedPall's formulas against vectors that were computed in NumPy, independently of this code."""

from __future__ import annotations

import torch

from protofleet.methods.contract.base import seeded
from protofleet.methods.maths.adversary import (
    exact_mask,
    infonce_terms,
    kl_with_uniform,
    mixed,
    prototype_infonce,
)
from protofleet.methods.maths.geometry import unit
from protofleet.methods.maths.means import class_means, merge_class_means
from tests.methods.test_oracles import case, check, gradient, leaf

KNOWN = torch.ones(3, dtype=torch.bool)


def test_the_divergence_from_uniform_equals_the_oracle_in_both_directions():
    given, expected = case("fedpall.kl")
    logits = leaf(given["amplifier_logits"])
    paper, code = kl_with_uniform(logits), kl_with_uniform(logits, direction="reverse")
    check(
        expected,
        probs=logits.softmax(dim=1),
        paper_KL_A_to_uniform=kl_with_uniform(logits, reduction="none"),
        paper_mean=paper,
        paper_sum=kl_with_uniform(logits, reduction="sum"),
        code_KL_uniform_to_A=kl_with_uniform(logits, direction="reverse", reduction="none"),
        code_mean=code,
        grad_of_paper_mean_wrt_logits_numeric=gradient(paper, logits),
        grad_of_code_mean_wrt_logits=gradient(code, logits),
    )


def test_the_standard_and_the_printed_infonce_equal_the_oracle():
    given, expected = case("fedpall.infonce")
    z = leaf(given["features"])
    arguments = z, given["labels"], given["global_prototypes"], KNOWN, given["tau"]
    standard = prototype_infonce(*arguments)
    check(
        expected,
        cos=unit(z) @ unit(given["global_prototypes"]).T,
        recommended_all_classes=infonce_terms(*arguments),
        recommended_mean=standard,
        grad_of_recommended_mean_wrt_features_numeric=gradient(standard, z),
        paper_excluding_positive=infonce_terms(*arguments, form="paper"),
        paper_excluding_positive_mean=prototype_infonce(*arguments, form="paper"),
    )


def test_infonce_of_the_code_of_the_authors_equals_the_oracle():
    given, expected = case("fedpall.infonce.code")
    arguments = given["features"], given["labels"], given["global_prototypes"], KNOWN, given["T"]
    check(
        expected,
        per_sample=infonce_terms(*arguments, form="code"),
        loss=prototype_infonce(*arguments, form="code"),
    )


def test_global_prototypes_of_raw_and_of_normalised_rows_equal_the_oracle():
    given, expected = case("fedpall.global_prototypes")

    def merged(rows):
        devices = zip(rows, given["counts"], strict=True)
        only = torch.zeros(1, dtype=torch.int64)
        return merge_class_means(class_means(c[None], only, 1, n[None]) for c, n in devices)[0][0]

    check(expected, paper=merged(given["local"]), code=merged(unit(given["local"])))


def test_mixed_and_masked_features_equal_the_oracle():
    given, expected = case("fedpall.mix_mask")
    known = torch.ones(2, dtype=torch.bool)
    arguments = given["features"], given["labels"], given["global_prototypes"], known
    r = mixed(*arguments, given["alpha"])
    check(expected, mixed=r, masked=given["mask"] * r)


def test_the_exact_mask_keeps_as_many_numbers_as_the_code_of_the_authors():
    given, expected = case("fedpall.mask_count")
    masks = [exact_mask(int(d), given["beta"], seeded("mask", d)) for d in given["d"]]
    assert all(set(mask.tolist()) == {0.0, 1.0} for mask in masks)
    assert [int(mask.sum()) for mask in masks] == expected["ones"].tolist()
