"""Tests of FedAvgM, FedAdagrad, FedAdam and FedYogi against plain loops, and of their limits."""

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from protofleet.methods import fedadagrad, fedadam, fedavg, fedavgm, fedyogi
from protofleet.methods.contract.base import Reply
from protofleet.methods.maths.moments import adagrad_square, adam_square, moving_mean, yogi_square
from protofleet.methods.parts.local import LocalHyper
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import sent_parameters
from tests.methods.plain import DATA, LOCAL, PRESENT, fit, halves, network, order_of, played
from tests.methods.tiny import answer, clients_of, member, normal, play, same, server_of, tiny

B1, B2, TAU, ETA = 0.7, 0.95, 0.01, 0.05
FEDOPT = {"server_lr": ETA, "beta1": B1, "tau": TAU}
HYPERS = {
    fedavgm: fedavgm.Hyper(**LOCAL, server_momentum=B1, server_lr=ETA),
    fedadagrad: fedadagrad.Hyper(**LOCAL, **FEDOPT),
    fedadam: fedadam.Hyper(**LOCAL, **FEDOPT, beta2=B2),
    fedyogi: fedadam.Hyper(**LOCAL, **FEDOPT, beta2=B2),
}
every_method = pytest.mark.parametrize("module", HYPERS, ids=lambda m: m.__name__.rpartition(".")[2])


def squares(module, v, d):
    """Return the new v, number by number, from the three lines of the paper's algorithm 2."""
    if module is fedadagrad:
        return v + d * d
    if module is fedadam:
        return B2 * v + (1 - B2) * d * d
    return v - (1 - B2) * d * d * np.sign(v - d * d)


def stepped(module, x, d, m, v):
    if module is fedavgm:
        m = B1 * m + d
        return x + ETA * m, m, v
    m, v = B1 * m + (1 - B1) * d, squares(module, v, d)
    return x + ETA * m / (np.sqrt(v) + TAU), m, v


def loop(module):
    """Run the rounds in one process: local SGD by torch, and the server's step by numpy."""
    hyper, x = HYPERS[module], {k: v.clone() for k, v in network().state_dict().items()}
    learned = {name for name, _ in network().named_parameters()}
    m, v = dict.fromkeys(learned, 0.0), dict.fromkeys(learned, TAU**2)
    for number, present in enumerate(PRESENT, 1):
        total, came = sum(len(DATA[name].y) for name in present), {}
        for name in present:
            model = network()
            model.load_state_dict(x)
            loss = lambda inputs, y, model=model: F.cross_entropy(model(inputs), y)  # noqa: E731
            part = list(model.parameters())
            fit(model, part, DATA[name], hyper.epochs, hyper, order_of(name, number), loss)
            came[name] = copy.deepcopy(model.state_dict())
        for key, old in x.items():
            mean = sum(len(DATA[name].y) / total * came[name][key] for name in present)
            if key in learned:
                old = old.numpy()
                new, m[key], v[key] = stepped(module, old, mean.numpy() - old, m[key], v[key])
                mean = torch.from_numpy(new)
            x[key] = mean if x[key].is_floating_point() else came[present[0]][key]
    return x


@every_method
def test_four_rounds_with_partial_cohorts_equal_those_of_a_plain_loop(module):
    server, _ = played(module, HYPERS[module])
    for key, value in loop(module).items():
        assert_close(server.payload()[f"weights.{key}"], value, rtol=1e-9, atol=1e-11)


def test_the_moments_equal_the_formulas_for_each_number():
    v, d = normal(50, seed=1).square(), normal(50, seed=2)
    for module, square in {
        fedadagrad: adagrad_square(v, d), fedadam: adam_square(v, d, B2), fedyogi: yogi_square(v, d, B2)
    }.items():  # fmt: skip
        expected = [float(squares(module, a, b)) for a, b in zip(v.tolist(), d.tolist(), strict=True)]
        assert_close(square.tolist(), expected, rtol=1e-12, atol=0)
        assert float(square.min()) >= 0
    expected = [B1 * a + (1 - B1) * b for a, b in zip(v.tolist(), d.tolist(), strict=True)]
    assert_close(moving_mean(v, d, B1).tolist(), expected, rtol=1e-12, atol=0)


def test_fedavgm_without_momentum_and_with_rate_1_has_the_same_bits_as_fedavg():
    plain = fedavgm.Hyper(**LOCAL, server_momentum=0.0, server_lr=1.0)
    ours, theirs = (
        server_of(fedavgm.METHOD, plain, norm=True),
        server_of(fedavg.METHOD, fedavg.Hyper(**LOCAL), norm=True),
    )
    for server in (ours, theirs):
        clients = clients_of(fedavg.METHOD, LocalHyper(**LOCAL), norm=True)
        for number, present in enumerate(PRESENT[:2], 1):
            play(server, {name: clients[name] for name in present}, number)
    assert same(ours.payload(), theirs.payload())


def test_the_first_round_of_fedavgm_is_a_round_of_fedavg():
    server, _ = played(fedavgm, fedavgm.Hyper(**LOCAL), rounds=PRESENT[:1])
    other, _ = played(fedavg, fedavg.Hyper(**LOCAL), rounds=PRESENT[:1])
    for key, value in other.payload().items():
        assert_close(server.payload()[key], value, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("module", [fedadam, fedyogi])
def test_the_server_rate_limits_the_change_of_each_number_in_round_1(module):
    """The devices' rate is so high that the bound is almost reached."""
    hyper = fedadam.Hyper(epochs=2, batch=8, lr=1.0, server_lr=0.03)
    server, _ = played(module, hyper, rounds=PRESENT[:1])
    start = sent_parameters(network())
    moved = max(float((w - start[name]).abs().max()) for name, w in sent_parameters(server.model).items())
    bound = 0.03 * (1 - hyper.beta1) / math.sqrt(1 - hyper.beta2)
    assert 0.9 * bound < moved <= bound


@every_method
def test_the_order_of_answers_changes_no_bit(module):
    server, clients = halves(module, HYPERS[module])
    server.begin(1, [member(name, client) for name, client in clients.items()])
    before = snapshot(server.state())
    found = []
    for order in (sorted(clients), sorted(clients, reverse=True)):
        server.restore(before)
        story = server.round()
        ask = next(story)
        replies = [Reply(n, len(DATA[n].y), answer(clients[n], ask, 1)) for n in order]
        with pytest.raises(StopIteration):
            story.send(replies)
        found.append(snapshot(server.state()))
    assert same(*found) and not same(found[0], before)


@every_method
def test_a_model_with_nan_or_infinity_or_a_negative_variance_is_refused(module):
    server = server_of(module.METHOD, HYPERS[module], norm=True)
    client = clients_of(module.METHOD, HYPERS[module], norm=True)["device-0"]
    server.begin(1, [member("device-0", client)])
    ask = next(server.round())
    sent = answer(client, ask, 1)
    for key, value in {
        "features.1.running_var": -1.0,
        "head.weight": math.nan,
        "head.bias": math.inf,
    }.items():
        bad = torch.full_like(sent[f"weights.{key}"], value)
        assert key in str(ask.problem_with({**sent, f"weights.{key}": bad}).message)


def test_the_state_has_moments_for_each_parameter_and_for_no_statistic():
    keys = {f"{kind}.{name}" for kind in "mv" for name, _ in tiny(norm=True).named_parameters()}
    state = server_of(fedadam.METHOD, HYPERS[fedadam], norm=True).state()
    assert {key for key in state if not key.startswith("weights.")} == keys
    assert all(float(v.min()) == pytest.approx(TAU**2) for key, v in state.items() if key.startswith("v."))
