"""Tests that weights in one flat vector are the same weights."""

import pytest
import torch
from torch import nn

from protofleet.methods.contract.base import Ask
from protofleet.methods.parts.flat import flat_wants, flat_weights, load_flat
from protofleet.methods.parts.weights import weights_of
from tests.methods.tiny import floats, same, tiny


def with_statistics(seed):
    model = tiny(seed, norm=True).double()
    for part in model.modules():
        if isinstance(part, nn.BatchNorm1d):
            part.running_mean.normal_()
            part.running_var.uniform_()
            part.num_batches_tracked.add_(seed)
    return model


def test_a_model_is_the_same_after_its_flat_weights_are_loaded():
    model, other = with_statistics(1), with_statistics(2)
    load_flat(other, flat_weights(model))
    assert same(weights_of(model), weights_of(other))


def test_flat_weights_has_one_copied_array_for_each_kind_of_tensor():
    model = with_statistics(3)
    flat = flat_weights(model, "head")
    sizes = {name: len(value) for name, value in flat.items()}
    parameters = sum(p.numel() for p in model.parameters())
    assert sizes == {
        "head.parameters": parameters, "head.running_mean": 8, "head.running_var": 8, "head.num_batches_tracked": 1,
    }  # fmt: skip
    assert floats(flat) == {"head": floats(weights_of(model))["weights"]}
    before = flat["head.parameters"].clone()
    with torch.no_grad():
        model.head.bias.add_(1)
    assert torch.equal(flat["head.parameters"], before)


@pytest.mark.parametrize("name", ["weights.running_var", "weights.num_batches_tracked"])
def test_flat_wants_checks_types_and_lengths_and_refuses_negative_variances(name):
    model = with_statistics(4)
    ask = Ask("train", {}, flat_wants(model))
    sent = flat_weights(model)
    assert ask.problem_with(sent) is None
    assert "below 0" in ask.problem_with({**sent, name: sent[name] - 10}).message
    assert "not (" in ask.problem_with({**sent, name: sent[name][:0]}).message
    assert ask.wants["weights.parameters"].dtype == "float64"


def test_a_module_without_buffers_has_one_flat_array():
    assert list(flat_weights(nn.Linear(2, 3))) == ["weights.parameters"]
    assert flat_wants(nn.Linear(2, 3))["weights.parameters"].shape == (9,)
