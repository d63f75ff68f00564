"""Tests that the predictor of a method is a module that a card and its tensors are enough to rebuild."""

import dataclasses
import json

import numpy as np
import pytest
import safetensors.torch
import torch

from protofleet.methods.nets.weights_file import decoded_weights, encoded_weights
from protofleet.methods.parts.rules import Nearest, Rule
from protofleet.methods.served.card import CardError, read_card, sha256_of_tensors
from protofleet.methods.served.rebuild import rebuild
from protofleet.methods.served.scaling import Input, Scaling, input_of
from protofleet.methods.served.served import served, ways_of
from protofleet.methods.served.template import with_room
from tests.methods.served.trained import NAMES, device_0, model_of, plan_of

# With these settings the methods predict by prototypes and also measure the classifier.
NOT_MEASURED = {method: {"prototype"} for method in ("fedproto", "fedsa", "fedtgp", "tinyproto")}
every_method = pytest.mark.parametrize("method", sorted(NAMES))


@every_method
def test_a_served_model_gives_the_scores_of_the_half_in_each_way_to_predict(method):
    half, of = device_0(method), input_of(plan_of(method))
    raw = of.drawn(7, seed=5)
    x = (2 * raw - 255) / 255
    named = set(plan_of(method).variant.other_rules)
    assert set(ways_of(half)) - {"predict"} == named - NOT_MEASURED.get(method, set())
    with torch.no_grad():
        for way in ways_of(half):
            rule = half.rule() if way == "predict" else half.other_rules()[way]
            model = served(half, of, way)
            assert isinstance(model.rule, Rule)
            assert torch.equal(model(raw), half.scores(x, rule))
        assert torch.equal(served(half, of)(raw), half.predict(x))


@every_method
def test_a_model_can_be_rebuilt_from_its_card_and_tensors(method):
    for way in ways_of(device_0(method)):
        model, card = model_of(method, way)
        content = encoded_weights(model.state_dict(), {"way": way})
        again = rebuild(read_card(card.text().encode()), decoded_weights(content))
        raw = card.input.drawn(5)
        with torch.no_grad():
            assert torch.equal(again(raw), model(raw))


@pytest.mark.parametrize("shape", [(6,), (6, 20), (3, 8, 9), (1, 8, 8)])
def test_the_input_of_a_model_is_scaled_to_minus_one_to_one_for_any_shape(shape):
    low, high = tuple(range(shape[0])), tuple(range(10, 10 + 2 * shape[0], 2))
    for of in (Input(shape), Input(shape, tuple(map(float, low)), tuple(map(float, high)))):
        raw = torch.stack([torch.ones(shape)] * 2)
        ends = [torch.tensor(row).reshape(-1, *[1] * (len(shape) - 1)) for row in (of.low, of.high)]
        found = Scaling(of)(torch.stack([ends[0] * raw[0], ends[1] * raw[1]]))
        assert torch.equal(found, torch.stack([-torch.ones(shape), torch.ones(shape)]))


def test_a_served_model_scales_pixels_with_the_same_bits_as_a_device():
    pixels = np.arange(256)
    table = torch.from_numpy((2 * pixels - 255).astype(np.float32) / np.float32(255))
    assert torch.equal(Scaling(Input((1, 16, 16)))(torch.arange(256.0)), table)


def test_the_library_safetensors_reads_the_tensors_and_metadata_of_a_model(tmp_path):
    model, card = model_of("fedproto", "predict")
    path = tmp_path / "model.safetensors"
    path.write_bytes(encoded_weights(model.state_dict(), {"classes": json.dumps(card.classes)}))
    found = safetensors.torch.load_file(path)
    assert found.keys() == model.state_dict().keys()
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in found.items())
    with safetensors.safe_open(path, "pt") as file:
        assert json.loads(file.metadata()["classes"]) == list(card.classes)


def test_unknown_fields_of_a_card_of_a_later_version_are_ignored():
    _, card = model_of("fedlsa", "anchor")
    table = json.loads(card.text())
    table["colour"] = table["input"]["smell"] = {"new": 1}
    assert read_card(json.dumps(table).encode()) == card


@pytest.mark.parametrize(
    "change, words",
    [
        ({"format": 2}, "format is 2, but this version reads 1"),
        ({"method": 3}, "card.method is 3, but must be a string"),
        ({"input": {"shape": []}}, "it must have 1 to 3 axes"),
        ({"input": {"shape": [3, 70_000]}}, "it must be"),
        ({"input": {"shape": [4096, 4096, 4096]}}, "16,777,216 numbers"),
        ({"input": {"shape": [3, 8, 8], "low": [5.0], "high": [5.0]}}, "low must be below high"),
        ({"plan": None}, "card.plan is"),
    ],
)
def test_a_card_with_a_wrong_value_is_refused_in_one_line(change, words):
    _, card = model_of("fedavg", "predict")
    with pytest.raises(CardError, match=words) as caught:
        read_card(json.dumps({**json.loads(card.text()), **change}).encode())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b"3"])
def test_bytes_that_are_not_a_card_are_refused(text):
    with pytest.raises(CardError):
        read_card(text)


def test_tensors_of_another_model_are_refused():
    model, card = model_of("fedproto", "predict")
    tensors = model.state_dict()
    with pytest.raises(CardError, match="their SHA-256 differs"):
        rebuild(card, {**tensors, "rule.rows": tensors["rule.rows"] + 1})
    cut = {**tensors, "rule.rows": tensors["rule.rows"][:, :3]}
    with pytest.raises(CardError, match="no model can be made"):
        rebuild(dataclasses.replace(card, tensors=sha256_of_tensors(cut)), cut)
    with pytest.raises(CardError, match="the card has 2 classes"):
        rebuild(dataclasses.replace(card, classes=("a", "b")), tensors)
    far = {**tensors, "rule.places": tensors["rule.places"] + 9}
    with pytest.raises(CardError, match="beyond the rule's rows"):
        rebuild(dataclasses.replace(card, tensors=sha256_of_tensors(far)), far)
    with pytest.raises(CardError, match="this version knows only classifier, nearest"):
        rebuild(dataclasses.replace(card, rule={"kind": "custom"}), tensors)


def test_a_rule_with_additional_rows_predicts_the_same_scores():
    model, card = model_of("fedplcc", "prototype")
    tensors = model.state_dict()
    rows, each = len(tensors["rule.rows"]), tensors["rule.places"].shape[1]
    wider = with_room(tensors, rows + 5, each + 2)
    again = rebuild(dataclasses.replace(card, tensors=sha256_of_tensors(wider)), wider)
    raw = card.input.drawn(6)
    with torch.no_grad():
        torch.testing.assert_close(again(raw), model(raw))  # A wider product differs in the last bits.
    with pytest.raises(CardError, match="export the template again"):
        with_room(tensors, rows - 1, each)


def test_added_rows_belong_to_no_class():
    rows = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    rule = Nearest(rows, torch.tensor([0, 0, 1, 3, 3]), 4, "squared")  # No row has class 2.
    wider = with_room({"rule.rows": rule.rows, "rule.places": rule.places}, 9, 4)
    assert wider["rule.rows"].shape == (9, 4) and wider["rule.places"].shape == (4, 4)
    z = torch.zeros(3, 4)  # These rows are nearer to the padding than to any row.
    before = rule(z)
    rule.rows, rule.places = wider["rule.rows"], wider["rule.places"]
    assert torch.equal(rule(z), before)
