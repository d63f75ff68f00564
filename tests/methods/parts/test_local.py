"""Tests of the training loop, its settings, and the passes without gradient."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from protofleet.methods.contract.base import seeded
from protofleet.methods.parts.local import BATCH, LocalHyper, embed, in_batches, train
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import weights_of
from tests.methods.tiny import Shard, same, shard, tiny

HYPER = LocalHyper(epochs=3, batch=10, lr=0.1)
DATA = shard(0, (0, 1, 2) * 7)  # 21 samples: the last batch has one


def entropy(model):
    return lambda x, y: F.cross_entropy(model(x), y)


def trained(seed=0, hyper=HYPER, data=DATA, network=tiny, **options):
    model = network(**options)
    train(model, data, entropy(model), hyper, seeded(seed))
    return snapshot(weights_of(model))


def test_training_with_one_batch_is_gradient_descent_with_momentum():
    hyper = LocalHyper(epochs=4, batch=100, lr=0.1, momentum=0.9, weight_decay=0.01)
    model = tiny()
    weights = list(model.parameters())
    velocity = [torch.zeros_like(w) for w in weights]
    for _ in range(hyper.epochs):
        gradients = torch.autograd.grad(F.cross_entropy(model(DATA.x), DATA.y), weights)
        for w, v, g in zip(weights, velocity, gradients, strict=True):
            v.mul_(0.9).add_(g + 0.01 * w.detach())
            w.data.sub_(0.1 * v)
    found = trained(hyper=hyper)
    for name, w in weights_of(model).items():
        assert_close(found[name], w)


def test_each_epoch_uses_each_sample_once_and_in_its_own_order():
    model, epochs = tiny(), []

    def objective(x, y):
        epochs[-1].append(x)
        return F.cross_entropy(model(x), y)

    train(model, DATA, objective, HYPER, seeded(0), before_epoch=lambda: epochs.append([]))
    assert [[len(x) for x in batches] for batches in epochs] == [[10, 10, 1]] * 3
    orders = [torch.cat(batches) for batches in epochs]
    rows = sorted(DATA.x.tolist())
    assert all(sorted(order.tolist()) == rows for order in orders)
    assert not torch.equal(orders[0], orders[1]) and not torch.equal(orders[0], DATA.x)


def test_training_depends_only_on_the_generator():
    assert same(trained(1), trained(1)) and not same(trained(1), trained(2))


def noisy():
    model = tiny()
    model.features.append(nn.Dropout(0.5))
    return model


def test_dropout_draws_from_the_given_generator_and_not_from_the_global_one():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one = trained(1, network=noisy)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    assert same(one, trained(1, network=noisy)) and not same(one, trained(1))


def test_the_global_generator_is_restored_when_an_objective_fails():
    before, model = torch.get_rng_state(), noisy().eval()

    def fails(x, y):
        model(x)
        raise RuntimeError("objective")

    with pytest.raises(RuntimeError, match="objective"):
        train(model, DATA, fails, HYPER, seeded(0))
    assert torch.equal(torch.get_rng_state(), before) and not model.training


def test_a_last_batch_of_one_sample_does_not_change_the_statistics_of_batch_norm():
    found = trained(norm=True)
    assert all(w.isfinite().all() for w in found.values())
    assert int(found["weights.features.1.num_batches_tracked"]) == 6  # 3 epochs of 10 + 10 + 1


def test_a_device_with_one_sample_trains_with_the_running_statistics():
    model = tiny(norm=True)
    before = snapshot(weights_of(model))
    found = trained(data=Shard(DATA.x[:1], DATA.y[:1]), norm=True)
    for name in ("weight", "bias"):
        assert not torch.equal(found[f"weights.head.{name}"], before[f"weights.head.{name}"])
    for name in ("running_mean", "running_var"):
        assert torch.equal(found[f"weights.features.1.{name}"], before[f"weights.features.1.{name}"])


def test_batch_norm_is_in_evaluation_mode_only_for_a_batch_of_one_sample():
    model, modes = tiny(norm=True), []

    def objective(x, y):
        modes.append((len(x), model.features[1].training))
        return F.cross_entropy(model(x), y)

    train(model, DATA, objective, HYPER, seeded(0))
    assert modes == [(10, True), (10, True), (1, False)] * 3


def test_a_device_without_samples_changes_nothing():
    nobody = Shard(DATA.x[:0], DATA.y[:0])
    assert same(trained(data=nobody, norm=True), snapshot(weights_of(tiny(norm=True))))


def test_clipping_limits_the_length_of_a_step():
    hyper = LocalHyper(epochs=1, batch=100, lr=1.0, momentum=0.0, weight_decay=0.0, clip=0.01)
    before, after, free = weights_of(tiny()), trained(hyper=hyper), trained(hyper=replace(hyper, clip=None))

    def step(to):
        return math.sqrt(sum(float((to[name] - before[name]).square().sum()) for name in before))

    assert step(after) == pytest.approx(0.01, rel=1e-3) and step(free) > 0.1


@pytest.mark.parametrize("mode", [True, False])
def test_a_pass_uses_evaluation_mode_without_gradient_and_restores_the_mode(mode):
    model = noisy().train(mode)
    x = DATA.x.repeat(30, 1)  # Several batches.
    assert len(x) > 2 * BATCH
    found = embed(model, x)
    assert model.training == mode and not found.requires_grad
    assert_close(found, noisy().eval().embed(x))
    assert in_batches(model, model.features, x).shape == (len(x), 8)
    assert embed(model, x[:0]).shape == (0, 6)


@pytest.mark.parametrize(
    "setting, value, problem",
    [
        ("lr", -1, "lr is -1, it must be above 0"),
        ("lr", math.nan, "lr is nan, it must be above 0"),
        ("lr", math.inf, "lr is inf, it must be above 0"),
        ("epochs", 0, "epochs is 0, it must be at least 1"),
        ("batch", 0, "batch is 0, it must be at least 1"),
        ("momentum", 1.0, "momentum is 1.0, it must be at least 0 and below 1"),
        ("weight_decay", -0.1, "weight_decay is -0.1, it must be at least 0"),
        ("clip", 0.0, "clip is 0.0, it must be above 0 and at most 1e+18, or left out"),
    ],
)
def test_impossible_settings_are_refused_with_value_and_limit(setting, value, problem):
    with pytest.raises(ValueError) as error:
        LocalHyper(**{setting: value})
    assert str(error.value).startswith(problem)
