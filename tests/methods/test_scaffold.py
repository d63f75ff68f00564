"""Tests of SCAFFOLD against a plain loop and values computed by hand."""

import copy
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from protofleet.methods import fedavg, scaffold
from protofleet.methods.contract.base import Ask, Reply
from protofleet.methods.contract.received import WrongArraysError
from protofleet.methods.maths.proximity import linear
from protofleet.methods.maths.steps import effective_steps, mean_gradient, steps_of
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
from tests.methods.tiny import Shard, answer, member, play, same

HYPER = scaffold.Hyper(**LOCAL)
SETTINGS = {
    "default": HYPER,
    "momentum": replace(HYPER, momentum=0.9),
    "controls": replace(HYPER, weights="size", momentum=0.5, send_controls=True),
}
with_all_settings = pytest.mark.parametrize("hyper", SETTINGS.values(), ids=SETTINGS)


def trained(model, name, number, hyper, correction):
    """Train by steps that are written out, and return how far a constant gradient of 1 would move, in steps."""
    velocity, weight, moved = {}, 0.0, 0.0
    for x, y in batches(model, DATA[name], hyper.batch, hyper.epochs, order_of(name, number)):
        gradients = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
        weight = hyper.momentum * weight + 1
        moved += weight
        with torch.no_grad():
            for (key, w), gradient in zip(model.named_parameters(), gradients, strict=True):
                step = gradient + correction[key] + hyper.weight_decay * w
                velocity[key] = hyper.momentum * velocity.get(key, 0) + step
                w -= hyper.lr * velocity[key]
    return moved


def plain(hyper, rounds=PRESENT):
    """Return the model, c, and the control variates of all devices that took part."""
    world, own = network(), {}
    c = {key: torch.zeros_like(w) for key, w in world.named_parameters()}
    for number, present in enumerate(rounds, 1):
        x, models = {key: w.detach().clone() for key, w in world.named_parameters()}, {}
        for name in present:
            mine = own.setdefault(name, {key: torch.zeros_like(w) for key, w in x.items()})
            model = models[name] = copy.deepcopy(world)
            moved = trained(model, name, number, hyper, {key: c[key] - mine[key] for key in x})
            for key, y in model.named_parameters():
                mine[key] = mine[key] - c[key] + (x[key] - y.detach()) / (hyper.lr * moved)
        shares = {name: len(DATA[name].y) if hyper.weights == "size" else 1 for name in present}
        state = models[present[0]].state_dict()
        for key in [key for key, value in state.items() if value.is_floating_point()]:
            parts = [share * models[name].state_dict()[key] for name, share in shares.items()]
            state[key] = sum(parts) / sum(shares.values())
        world.load_state_dict(state)
        c = {key: sum(mine[key] for mine in own.values()) / len(own) for key in x}
    return world, c, own


@with_all_settings
def test_four_rounds_equal_those_of_a_plain_loop(hyper):
    server, clients = played(scaffold, hyper)
    world, c, own = plain(hyper)
    for key, value in world.state_dict().items():
        assert_close(server.payload()[f"weights.{key}"], value, rtol=1e-8, atol=1e-10)
    for key, value in c.items():
        assert_close(server.controls.mean()[key], value, rtol=1e-9, atol=1e-11)
        for name, mine in own.items():
            kept = clients[name].kept.continue_from(server.controls.told(), network())[1]
            assert_close(kept[key], mine[key], rtol=1e-9, atol=1e-11)


def mean_of_kept(server, clients):
    counted = [c for name, c in clients.items() if name in server.controls.counted]
    kept = [c.kept.continue_from(server.controls.told(), c.model)[1] for c in counted]
    return {key: sum(one[key].double() for one in kept) / len(kept) for key in kept[0]}


def check_mean(server, clients):
    for key, value in mean_of_kept(server, clients).items():
        assert_close(server.controls.mean()[key].double(), value, rtol=1e-9, atol=1e-11)


@with_all_settings
def test_c_is_the_mean_of_all_control_variates_even_if_answers_are_not_used(hyper):
    """In each round, the answer of one device is late."""
    server, clients = halves(scaffold, hyper)
    for _ in rounds_with_a_late_answer(server, clients, (*PRESENT, *PRESENT)):
        check_mean(server, clients)
    assert len(server.controls.counted) == 4


def begun(server, clients, number):
    """Begin a round and return its task and the answers."""
    server.begin(number, [member(name, client) for name, client in clients.items()])
    ask = next(server.round())
    return ask, {name: answer(client, ask, number) for name, client in clients.items()}


def test_c_is_the_mean_after_a_round_is_repeated_without_one_answer():
    server, clients = halves(scaffold, HYPER)
    play(server, clients, 1)
    before = snapshot(server.state())
    answers = play(server, clients, 2)[0]
    begun(server, clients, 3)  # Round 3 begins with all answers to round 2.
    server.restore(before)
    server.begin(2, [member(name, client) for name, client in clients.items()])
    story = server.round()
    next(story)
    with pytest.raises(StopIteration):
        story.send([Reply(n, len(DATA[n].y), p) for n, p in answers.items() if n != "device-1"])
    check_mean(server, clients)
    play(server, clients, 3)
    check_mean(server, clients)


@pytest.mark.parametrize("lr", [0.001, 0.2])
def test_the_first_round_equals_fedavg_with_uniform_weights_for_any_learning_rate(lr):
    hyper = replace(HYPER, lr=lr)
    server, clients = halves(scaffold, hyper)
    other, others = halves(fedavg, fedavg.Hyper(**{**LOCAL, "lr": lr}, momentum=0.0))
    other.begin(1, [])
    story = other.round()
    ask = next(story)
    replies = [Reply(name, 1, answer(client, ask, 1)) for name, client in others.items()]
    with pytest.raises(StopIteration):
        story.send(replies)
    play(server, clients, 1)
    assert same(server.payload(), other.payload())


def test_a_control_variate_is_the_mean_gradient_of_the_last_round_of_the_device():
    """Therefore, a control variate does not depend on the previous control variate."""
    server, clients = halves(scaffold, HYPER)
    for number in (1, 2):
        play(server, clients, number)
    model = network()
    model.load_state_dict(server.model.state_dict())
    x = {key: w.detach().clone() for key, w in model.named_parameters()}
    client = clients["device-0"]
    c, own = server.controls.mean(), client.kept.continue_from(server.controls.told(), model)[1]
    trained(model, "device-0", 3, HYPER, {key: c[key] - own[key] for key in x})
    play(server, clients, 3)
    after = client.kept.continue_from(server.controls.told(), model)[1]
    steps = HYPER.epochs * math.ceil(len(DATA["device-0"].y) / HYPER.batch)
    for key, y in model.named_parameters():
        gradient = (x[key] - y.detach()) / (HYPER.lr * steps) - (c[key] - own[key])
        assert_close(after[key], gradient, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 50])
def test_effective_steps_is_the_distance_that_a_constant_gradient_of_1_moves(steps, momentum):
    velocity = moved = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1
        moved += velocity
    assert effective_steps(steps, momentum) == pytest.approx(moved, rel=1e-9)


def test_the_formulas_equal_a_plain_computation():
    assert [steps_of(2, 8, n) for n in (0, 1, 8, 9, 17)] == [0, 2, 2, 4, 6]
    start, end = torch.tensor([1.0, 2.0, -3.0]), torch.tensor([0.75, 2.5, -3.0])
    expected = [(a - b) / (0.1 * 4.5) for a, b in zip(start.tolist(), end.tolist(), strict=True)]
    assert mean_gradient(start, end, 0.1, 4.5).tolist() == pytest.approx(expected, rel=1e-12)
    model = network()
    slopes = {key: torch.full_like(w, 0.5) for key, w in model.named_parameters()}
    linear(model, slopes).backward()
    assert all(torch.equal(w.grad, slopes[key]) for key, w in model.named_parameters())


def first_ask(hyper):
    ask, answers = begun(*halves(scaffold, hyper), 1)
    return ask, answers["device-0"]


@pytest.mark.parametrize("steps", [-1.0, 6.5, 1e9, math.inf, math.nan])
def test_impossible_numbers_of_steps_are_refused(steps):
    ask, honest = first_ask(HYPER)
    assert ask.wants["steps"].high == 2 * math.ceil(len(DATA["device-0"].y) / 8) == 6
    assert ask.problem_with({**honest, "steps": torch.tensor([steps], dtype=torch.float64)})


def after(steps):
    """Return the state after a round in which device-2 claims this number of steps."""
    server, clients = halves(scaffold, HYPER)
    server.begin(1, [member(name, client) for name, client in clients.items()])
    story = server.round()
    ask = next(story)
    sent = {name: answer(client, ask, 1) for name, client in clients.items()}
    sent["device-2"] = {**sent["device-2"], "steps": torch.tensor([steps], dtype=torch.float64)}
    with pytest.raises(StopIteration):
        story.send([Reply(name, len(DATA[name].y), arrays) for name, arrays in sent.items()])
    return snapshot(server.state())


def test_the_steps_of_a_device_are_capped_by_its_number_of_examples():
    """The bound of the task is that of the largest device, which device-2 is not."""
    own = HYPER.steps(len(DATA["device-2"].y))
    assert own < HYPER.steps(len(DATA["device-0"].y)) and same(after(1.5 * own), after(own))
    assert not same(after(0.5 * own), after(own))


def test_a_control_variate_does_not_change_for_less_than_one_step():
    x, y, c = torch.zeros(2), torch.ones(2), torch.full((2,), 0.5)
    assert scaffold.control_change(x, y, c, 0.1, 2.0).tolist() == [-5.5, -5.5]
    assert scaffold.control_change(x, y, c, 0.1, 0.999).tolist() == [0.0, 0.0]


def test_the_control_variate_of_a_device_without_examples_stays_0():
    data = {**DATA, "device-1": Shard(DATA["device-1"].x[:0], DATA["device-1"].y[:0])}
    server, clients = halves(scaffold, HYPER, data)
    for number in (1, 2, 3):
        play(server, clients, number)
    kept = clients["device-1"].kept.continue_from(server.controls.told(), network())[1]
    assert not any(value.any() for value in kept.values())
    check_mean(server, clients)


@pytest.mark.parametrize("value", [2e6, -2e6, math.inf, math.nan])
def test_impossible_changes_of_control_variates_are_refused(value):
    ask, honest = first_ask(SETTINGS["controls"])
    name = "controls.head.bias"
    assert name in honest and "steps" not in honest
    assert ask.problem_with({**honest, name: torch.full_like(honest[name], value)})


def test_a_broadcast_without_a_control_variate_is_refused_by_the_device():
    server, clients = halves(scaffold, HYPER)
    play(server, clients, 1)
    told = {**server.payload(), **server.controls.told("controls")}
    del told["controls.head.bias"]
    with pytest.raises(WrongArraysError, match=r"no controls\.head\.bias"):
        answer(clients["device-0"], Ask("train", told), 2)


def test_the_order_of_answers_and_a_restart_change_no_bit():
    finished = []
    for order in (1, -1):
        server, clients = halves(scaffold, HYPER)
        for number in (1, 2, 3):
            server.begin(number, [member(name, client) for name, client in clients.items()])
            story = server.round()
            ask = next(story)
            names = [*clients][::order]
            replies = [Reply(n, len(DATA[n].y), answer(clients[n], ask, number)) for n in names]
            with pytest.raises(StopIteration):
                story.send(replies)
            if order < 0:
                fresh, others = halves(scaffold, HYPER)
                fresh.restore(snapshot(server.state()))
                for name, client in clients.items():
                    others[name].restore(snapshot(client.state()))
                server, clients = fresh, others
        finished.append([server.state(), *(client.state() for client in clients.values())])
    assert all(same(a, b) for a, b in zip(*finished, strict=True))
