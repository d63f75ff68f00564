"""Tests of server steps beyond the mean: which arrays they move, and how often."""

import torch
from torch import nn
from torch.testing import assert_close

from protofleet.methods.parts.server_steps import Moment, move_parameters
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import weights_of
from tests.methods.tiny import tiny


def far(_name, x, mean):
    return x + 10 * (mean - x)


def test_move_parameters_steps_only_parameters_and_sets_statistics_to_the_mean():
    model, before = tiny(norm=True), snapshot(weights_of(tiny(norm=True)))
    mean = {k: w * 0.5 if w.is_floating_point() else w + 3 for k, w in before.items()}
    move_parameters(model, mean, far)
    learned = {f"weights.{name}" for name, _ in model.named_parameters()}
    after = weights_of(model)
    assert float(after["weights.features.1.running_var"].min()) == 0.5
    for key, w in before.items():
        assert_close(after[key], -4 * w if key in learned else mean[key])


def test_a_parameter_with_two_names_is_changed_once():
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    model["b"].weight = model["a"].weight
    before = snapshot(weights_of(model))
    move_parameters(model, {k: torch.zeros_like(w) for k, w in before.items()}, far)
    assert_close(weights_of(model), {k: -9 * w for k, w in before.items()})


def test_a_server_step_does_not_change_a_frozen_backbone():
    model = tiny(norm=True, frozen=True)
    before = snapshot(model.state_dict())
    move_parameters(model, {k: torch.zeros_like(w) for k, w in weights_of(model).items()}, far)
    for key, w in model.state_dict().items():
        assert torch.equal(w, before[key]) == (key.startswith("features.") or not bool(before[key].any()))


def test_a_moment_has_an_array_for_each_parameter_and_can_be_restored():
    model = tiny(norm=True)
    moment, again = Moment("v", model, 0.25), Moment("v", model)
    name = "head.weight"
    moment[name] = moment[name] + 1
    saved = moment.state()
    moment[name] = moment[name] + 1
    again.restore(saved)
    assert saved.keys() == {f"v.{key}" for key, _ in model.named_parameters()}
    assert float(again[name].mean()) == 1.25 and again[name].dtype == torch.float64
    assert float(again["head.bias"].mean()) == 0.25
