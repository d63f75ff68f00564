"""Tests of formulas against vectors that were computed in NumPy, independently of this code."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protofleet.methods.contract.base import Reply
from protofleet.methods.maths.anchors import anchor_cross_entropy, compactness, separation
from protofleet.methods.maths.geometry import unit
from protofleet.methods.maths.proximity import prototype_mse, proximal
from protofleet.methods.parts.averaging import weighted_mean

CASES = {c["id"]: c for c in json.loads((Path(__file__).parent / "oracles.json").read_text())["cases"]}


def case(name):
    """Return the inputs and the expected values of a case, with lists changed to tensors."""
    return tuple({k: _tensor(v) for k, v in CASES[name][part].items()} for part in ("inputs", "expected"))


def _tensor(value):
    if not isinstance(value, list):
        return value
    whole = all(isinstance(v, int) for v in value)
    return torch.tensor(value, dtype=torch.int64 if whole else torch.float64)


def check(expected, **found):
    for key, value in found.items():
        tolerance = 1e-5 if key.endswith("_numeric") else 1e-8
        wanted = torch.as_tensor(expected[key], dtype=torch.float64)
        torch.testing.assert_close(
            value.detach(), wanted, rtol=tolerance, atol=tolerance, msg=lambda m: f"{key}: {m}"
        )


def leaf(value: Tensor) -> Tensor:
    return value.double().requires_grad_()


def gradient(loss, wrt):
    return torch.autograd.grad(loss, wrt, retain_graph=True)[0]


def classifier(given) -> nn.Linear:
    head = nn.Linear(2, 3, dtype=torch.float64)
    head.load_state_dict({"weight": given["W"], "bias": given["b"]})
    return head


def test_the_recommended_separation_equals_the_oracle():
    given, expected = case("fedlsa.sep.recommended")
    raw = leaf(given["anchors_raw"])
    anchors = unit(raw)
    loss = separation(anchors, given["tau"])
    check(
        expected,
        anchors=anchors,
        per_anchor=separation(anchors, given["tau"], reduction="none"),
        loss=loss,
        sum_over_i=separation(anchors, given["tau"], reduction="sum"),
        grad_wrt_unit_anchors=gradient(loss, anchors),
        grad_wrt_raw_anchors=gradient(loss, raw),
    )


def test_the_printed_separation_of_unit_anchors_equals_the_oracle():
    given, expected = case("fedlsa.sep.paper_literal_unit")
    anchors, tau = unit(given["anchors_raw"]), given["tau"]
    loss = separation(anchors, tau, tau_inside=False)
    per_anchor = separation(anchors, tau, tau_inside=False, reduction="none")
    shifted = loss + torch.tensor(tau, dtype=torch.float64).log()
    check(expected, per_anchor=per_anchor, loss=loss, loss_minus_log_of_1_over_tau=shifted)


def test_the_printed_separation_of_raw_anchors_equals_the_oracle():
    given, expected = case("fedlsa.sep.paper_literal_raw")
    reading = {"tau": given["tau"], "tau_inside": False}
    check(
        expected,
        per_anchor=separation(given["anchors_raw"], **reading, reduction="none"),
        loss=separation(given["anchors_raw"], **reading),
    )


def test_compactness_equals_the_oracle():
    given, expected = case("fedlsa.com")
    h, anchors = leaf(unit(given["projected"])), unit(given["anchors_raw"])
    loss = compactness(h, given["labels"], anchors, given["tau"])
    per_sample = compactness(h, given["labels"], anchors, given["tau"], reduction="none")
    check(expected, h=h, per_sample=per_sample, loss=loss, grad_wrt_h=gradient(loss, h))


def test_compactness_with_raw_anchors_equals_the_oracle():
    given, expected = case("fedlsa.com.raw_anchors")
    arguments = unit(given["projected"]), given["labels"], given["anchors_raw"], given["tau"]
    check(expected, per_sample=compactness(*arguments, reduction="none"), loss=compactness(*arguments))


def test_anchor_cross_entropy_equals_the_oracle():
    given, expected = case("fedlsa.ace")
    anchors, head = unit(given["anchors_raw"]), classifier(given)
    per_anchor = anchor_cross_entropy(head, anchors, reduction="none")
    check(expected, logits=head(anchors), per_anchor=per_anchor, loss=anchor_cross_entropy(head, anchors))


def test_the_total_losses_of_fedlsa_equal_the_oracle():
    given, expected = case("fedlsa.totals")
    anchors, h, head = unit(given["anchors_raw"]), unit(given["projected"]), classifier(given)
    entropy = F.cross_entropy(head(h), given["labels"])
    check(
        expected,
        L_LSA=anchor_cross_entropy(head, anchors) + given["alpha"] * separation(anchors, given["tau"]),
        L_CE=entropy,
        L_HC=entropy + given["lam"] * compactness(h, given["labels"], anchors, given["tau"]),
    )


def test_the_average_of_fedavg_equals_the_oracle():
    given, expected = case("fedavg.average")
    shares = zip(given["weights"].tolist(), given["params"], strict=True)
    replies = [Reply(f"device-{i}", n, {"weights.w": w}) for i, (n, w) in enumerate(shares)]
    check(expected, average=weighted_mean(replies, ["weights.w"])["weights.w"])


def test_the_term_of_fedprox_equals_the_oracle():
    given, expected = case("fedprox.term")
    model = nn.Linear(2, 1, bias=False, dtype=torch.float64)
    model.load_state_dict({"weight": given["w"].reshape(1, 2)})
    term = given["mu"] * proximal(model, {"weight": given["w_global"].reshape(1, 2)})
    check(expected, term=term, grad_wrt_w=gradient(term, model.weight).flatten())


def test_the_regulariser_of_fedproto_equals_the_oracle():
    given, expected = case("fedproto.reg")
    known = torch.ones(3, dtype=torch.bool)
    check(expected, loss=prototype_mse(given["features"], given["labels"], given["global_prototypes"], known))


def named_in_tests(source: str) -> set[str]:
    """Return the string constants in the tests of a module, also those in their parameters."""
    tests = [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    found = [part.value for test in tests for part in ast.walk(test) if isinstance(part, ast.Constant)]
    return {word for word in found if isinstance(word, str)}


def test_a_test_names_each_case_of_the_oracles():
    """If a test does not name a case, the loss of that case would not be noticed."""
    modules = [path.read_text(encoding="utf-8") for path in Path(__file__).parent.rglob("test_*.py")]
    named = set().union(*map(named_in_tests, modules))
    assert sorted(CASES.keys() - named) == []
