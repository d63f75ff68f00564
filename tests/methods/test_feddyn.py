"""Tests of FedDyn against a plain loop and values computed by hand."""

import copy
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from protofleet.methods import feddyn
from protofleet.methods.contract.received import WrongArraysError
from protofleet.methods.parts.state import snapshot
from tests.methods.plain import (
    DATA,
    LOCAL,
    PRESENT,
    batches,
    halves,
    network,
    order_of,
    played,
    rounds_with_a_late_answer,
)
from tests.methods.tiny import answer, member, play, same

HYPER = feddyn.Hyper(**LOCAL, alpha=0.1)
SETTINGS = {
    "default": HYPER,
    "clipped": replace(HYPER, clip=0.3),
    "size": replace(HYPER, alpha_scale="size", clip=None),
    "mean": replace(HYPER, report="mean", momentum=0.5),
}
with_all_settings = pytest.mark.parametrize("hyper", SETTINGS.values(), ids=SETTINGS)


def trained(model, name, number, hyper, alpha, g):
    """Train by steps that are written out: the gradient of L - <g, w> + alpha / 2 |w - x|^2, clipped."""
    x, velocity = {key: w.detach().clone() for key, w in model.named_parameters()}, {}
    for rows, y in batches(model, DATA[name], hyper.batch, hyper.epochs, order_of(name, number)):
        gradients = torch.autograd.grad(F.cross_entropy(model(rows), y), list(model.parameters()))
        with torch.no_grad():
            whole = {}
            for (key, w), gradient in zip(model.named_parameters(), gradients, strict=True):
                whole[key] = gradient - g[key] + alpha * (w - x[key])
            norm = math.sqrt(sum(float(one.square().sum()) for one in whole.values()))
            scale = min(1.0, hyper.clip / (norm + 1e-6)) if hyper.clip else 1.0
            for key, w in model.named_parameters():
                step = scale * whole[key] + hyper.weight_decay * w
                velocity[key] = hyper.momentum * velocity.get(key, 0) + step
                w -= hyper.lr * velocity[key]


def plain(hyper, rounds=PRESENT):
    """Return x, the mean of the last models, and h; h follows its formula and is scaled when a device is new."""
    world, g, moves = network(), {}, {}
    h = {key: torch.zeros_like(w) for key, w in world.named_parameters()}
    for number, present in enumerate(rounds, 1):
        x, models, m = {key: w.detach().clone() for key, w in world.named_parameters()}, {}, len(g)
        mean_size = sum(len(DATA[name].y) for name in present) / len(present)
        for name in present:
            moves.setdefault(name, dict.fromkeys(x, 0.0))
            g.setdefault(name, {key: torch.zeros_like(w) for key, w in x.items()})
            alpha = hyper.alpha
            if hyper.alpha_scale == "size":  # g is the gradient of the present alpha.
                alpha *= mean_size / len(DATA[name].y)
                g[name] = {key: -alpha * w + torch.zeros_like(x[key]) for key, w in moves[name].items()}
            model = models[name] = copy.deepcopy(world)
            trained(model, name, number, hyper, alpha, g[name])
            for key, y in model.named_parameters():
                g[name][key] = g[name][key] - alpha * (y.detach() - x[key])
                moves[name][key] = moves[name][key] + (y.detach() - x[key])
        for key in h:
            moved = sum(dict(models[name].named_parameters())[key].detach() - x[key] for name in present)
            h[key] = h[key] * m / len(g) - hyper.alpha / len(g) * moved
        state = models[present[0]].state_dict()
        for key in [key for key, value in state.items() if value.is_floating_point()]:
            state[key] = sum(models[name].state_dict()[key] for name in present) / len(present)
        mean = copy.deepcopy(state)
        for key, value in h.items():
            state[key] = state[key] - value / hyper.alpha
        world.load_state_dict(state)
    return world.state_dict(), mean, h, g


@with_all_settings
def test_four_rounds_equal_those_of_a_plain_loop(hyper):
    server, _ = played(feddyn, hyper)
    x, mean, h, _ = plain(hyper)
    for key, value in (mean if hyper.report == "mean" else x).items():
        assert_close(server.payload()[f"weights.{key}"], value, rtol=1e-8, atol=1e-10)
    for key, value in h.items():
        assert_close(-hyper.alpha * server.moves.mean()[key], value, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ["default", "mean"])
def test_h_is_the_mean_of_the_g_of_all_devices_without_scaling(name):
    hyper = SETTINGS[name]
    server, clients = played(feddyn, hyper)
    _, _, h, g = plain(hyper)
    assert set(g) == set(clients)
    for key, value in h.items():
        assert_close(value, sum(one[key] for one in g.values()) / len(g), rtol=1e-9, atol=1e-11)
        kept = [c.kept.continue_from(server.moves.told(), c.model)[1][key] for c in clients.values()]
        assert_close(-hyper.alpha * sum(kept) / len(kept), value, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("hyper", [HYPER, SETTINGS["mean"]], ids=["default", "mean"])
def test_h_is_the_mean_after_each_round_even_if_answers_are_not_used(hyper):
    """In each round, the answer of one device is late."""
    server, clients = halves(feddyn, hyper)
    for _ in rounds_with_a_late_answer(server, clients, (*PRESENT, *PRESENT)):
        counted = [c for name, c in clients.items() if name in server.moves.counted]
        kept = [c.kept.continue_from(server.moves.told(), c.model)[1] for c in counted]
        for key, value in server.moves.mean().items():
            assert_close(value, sum(one[key] for one in kept) / len(kept), rtol=1e-9, atol=1e-11)
    assert len(server.moves.counted) == 4


def test_both_reports_train_the_same_models():
    """With `mean`, the devices add the drift themselves."""
    one, other = (played(feddyn, replace(HYPER, report=report))[0] for report in ("server", "mean"))
    for key, step in other.moves.mean().items():
        name = f"weights.{key}"
        assert_close(one.payload()[name], other.payload()[name] + step, rtol=1e-8, atol=1e-10)
        assert torch.equal(other.moves.told("drift")[f"drift.{key}"], step)


def test_the_statistics_of_batch_norms_are_means():
    server, clients = halves(feddyn, HYPER)
    answers = play(server, clients, 1)[0]
    for name, value in server.payload().items():
        if "running" in name:
            assert_close(value, sum(one[name] for one in answers.values()) / len(answers))


@pytest.mark.parametrize("value", [2e6, -2e6, math.inf, math.nan])
def test_impossible_weights_are_refused(value):
    server, clients = halves(feddyn, HYPER)
    server.begin(1, [member(name, client) for name, client in clients.items()])
    ask = next(server.round())
    honest = answer(clients["device-0"], ask, 1)
    name = "weights.head.bias"
    assert ask.problem_with({**honest, name: torch.full_like(honest[name], value)})


@pytest.mark.parametrize(("hyper", "array"), [("mean", "drift.head.bias"), ("size", "size")])
def test_a_broadcast_without_an_array_is_refused_by_the_device(hyper, array):
    server, clients = halves(feddyn, SETTINGS[hyper])
    play(server, clients, 1)
    server.begin(2, [member(name, client) for name, client in clients.items()])
    ask = next(server.round())
    received = {name: value for name, value in ask.payload.items() if name != array}
    assert len(received) == len(ask.payload) - 1
    with pytest.raises(WrongArraysError, match=f"no {array}"):
        answer(clients["device-0"], replace(ask, payload=received), 2)


def test_a_restart_after_each_round_changes_no_bit():
    finished = []
    for restarts in (False, True):
        server, clients = halves(feddyn, HYPER)
        for number in (1, 2, 3):
            play(server, clients, number)
            if restarts:
                fresh, others = halves(feddyn, HYPER)
                fresh.restore(snapshot(server.state()))
                for name, client in clients.items():
                    others[name].restore(snapshot(client.state()))
                server, clients = fresh, others
        finished.append([server.state(), *(client.state() for client in clients.values())])
    assert all(same(a, b) for a, b in zip(*finished, strict=True))
