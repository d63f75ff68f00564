"""Tests of FedKD against a plain loop and values computed by hand."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from protofleet.methods import fedkd
from protofleet.methods.contract.base import Reply, seeded
from protofleet.methods.contract.cost import Sizes, parameters
from protofleet.methods.contract.plan import Network, Plan
from protofleet.methods.nets.base import initialised_from
from protofleet.methods.parts.state import snapshot
from tests.methods.plain import DATA, LOCAL, PRESENT, batches, network, order_of
from tests.methods.test_fml import WITHOUT_A_CLASS, kl
from tests.methods.tiny import CLASSES, Net, play, same

# The energies are low enough that matrices of the tiny networks are also sent in factors.
HYPER = fedkd.Hyper(**LOCAL, energy_first=0.5, energy_last=0.9)
VARIANTS = (
    {}, {"travel": "parameters"}, {"targets": "moving", "clip": None}, {"kl": "elements", "clip": 0.5},
    {"energy_first": 1.0, "energy_last": 1.0},
)  # fmt: skip
CLOSE = {"rtol": 1e-8, "atol": 1e-10}


def shared_network():
    """Return a network of another kind with another embedding width; one matrix is large enough for factors."""
    with initialised_from(5):
        features = nn.Sequential(
            nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU()
        )
        return Net(features, 12, CLASSES).double()


def first_map():
    with initialised_from(seeded(7, "W_h").initial_seed()):
        return nn.Linear(12, network().embedding_size, bias=False).double()


def compressed(value, energy):
    """Return what remains of a matrix when only its factors are sent; return a vector unchanged."""
    if value.ndim < 2:
        return value
    U, s, V = np.linalg.svd(value.numpy(), full_matrices=False)
    r = 1
    while (s[:r] ** 2).sum() < energy * (s**2).sum():
        r += 1
    if r * (sum(value.shape) + 1) >= value.numel():
        return value
    return torch.from_numpy(sum(s[i] * np.outer(U[:, i], V[i]) for i in range(r)))


def plain(rounds, hyper):
    models, maps, world = {n: network() for n in DATA}, {n: first_map() for n in DATA}, shared_network()
    learned = {key for key, _ in world.named_parameters()}
    for number, present in enumerate(rounds, 1):
        energy = hyper.energy_first + (hyper.energy_last - hyper.energy_first) * number / len(rounds)
        begun, sent = copy.deepcopy(world), {}
        if hyper.travel == "parameters":
            with torch.no_grad():
                for value in begun.parameters():
                    value.copy_(compressed(value.detach(), energy))
        for name in present:
            g = copy.deepcopy(begun)
            together(models[name], g, maps[name], DATA[name], hyper, order_of(name, number))
            state, old = g.state_dict(), begun.state_dict()
            if hyper.travel == "update":
                state = {key: value - old[key] if key in learned else value for key, value in state.items()}
            sent[name] = {
                key: compressed(v.clone(), energy) if key in learned else v for key, v in state.items()
            }
        for key, value in world.state_dict().items():
            came = [sent[name][key] for name in sorted(present)]
            mean = sum(came) / len(came) if value.is_floating_point() else came[0]
            value.copy_(value + mean if hyper.travel == "update" and key in learned else mean)
    return world, models, maps


def together(f, g, W, data, hyper, order):
    nets = [f, g, W]
    steps = [
        torch.optim.SGD(n.parameters(), hyper.lr, hyper.momentum, weight_decay=hyper.weight_decay)
        for n in nets
    ]
    for x, y in batches(nn.ModuleList(nets), data, hyper.batch, hyper.epochs, order):
        z, z_g = f.embed(x), g.embed(x)
        own, shared, elements = f.head(z), g.head(z_g), hyper.kl == "elements"
        error, error_g = F.cross_entropy(own, y), F.cross_entropy(shared, y)
        hint = (z - z_g @ W.weight.T).square().mean()
        below = error + error_g
        if hyper.targets == "fixed":
            below = below.item()
        losses = [
            error + (kl(shared, own, elements) + hint) / below,
            error_g + (kl(own, shared, elements) + hint) / below,
        ]
        found = []
        for net, mine in ((f, losses[0]), (g, losses[1]), (W, losses[1])):  # W_h once
            moved = sum(losses) if hyper.targets == "moving" else mine
            found.append(torch.autograd.grad(moved, list(net.parameters()), retain_graph=True))
        for net, gradients, sgd in zip(nets, found, steps, strict=True):
            norm = float(torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt())
            shrink = 1.0 if hyper.clip is None else min(1.0, hyper.clip / (norm + 1e-6))
            for parameter, gradient in zip(net.parameters(), gradients, strict=True):
                parameter.grad = shrink * gradient
            sgd.step()


def fleet(hyper, rounds=4):
    clients = {
        name: fedkd.METHOD.Client(network(), part, hyper, 7, name, shared_network())
        for name, part in DATA.items()
    }
    server = fedkd.METHOD.Server(shared_network(), hyper, 7)
    for half in (server, *clients.values()):
        half.rounds = rounds
    return server, clients


def played(rounds, hyper):
    server, clients = fleet(hyper)
    up = [
        play(server, {name: clients[name] for name in present}, number)[0]
        for number, present in enumerate(rounds, 1)
    ]
    return server, clients, up


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("rounds", [PRESENT, WITHOUT_A_CLASS])
def test_four_rounds_equal_those_of_a_plain_loop(rounds, variant):
    hyper = replace(HYPER, **variant)
    server, clients, up = played(rounds, hyper)
    world, models, maps = plain(rounds, hyper)
    for key, value in server.model.state_dict().items():
        assert_close(value, world.state_dict()[key], **CLOSE)
    for name, model in models.items():
        for key, value in model.state_dict().items():
            assert_close(clients[name].model.state_dict()[key], value, **CLOSE)
        assert_close(clients[name].W_h.weight, maps[name].weight, **CLOSE)
    lengths = {len(sent["weights.features.3.weight"]) for answers in up for sent in answers.values()}
    assert lengths == {192} if hyper.energy_first == 1.0 else min(lengths) < 192, (
        "otherwise this test shows no factors"
    )


def test_the_energy_grows_in_each_round_up_to_energy_last():
    usual = fedkd.Hyper()
    assert [usual.energy(t, 3) for t in (1, 2, 3)] == pytest.approx([0.96, 0.97, 0.98])
    assert usual.energy(1, 0) == pytest.approx(0.98), "if the number of rounds is unknown"


def test_both_halves_know_the_number_of_rounds():
    plan = Plan("fedkd", 3, 12, network=Network("mlp"), size=8)
    assert plan.server_half().rounds == plan.client_half(DATA["device-0"], "a").rounds == 12


def test_all_devices_receive_the_same_shared_network():
    server, clients, _ = played(PRESENT, HYPER)
    ask = next(server.round())
    for client in clients.values():
        client.receive(snapshot(ask.payload))
        assert same(client.mutual.state_dict(), server.model.state_dict())


def test_travel_parameters_also_sends_the_broadcast_in_factors():
    server, clients, _ = played(PRESENT, replace(HYPER, travel="parameters"))
    payload = server.shared()
    assert len(payload["weights.features.3.weight"]) < 192
    clients["device-0"].receive(snapshot(payload))
    energy = HYPER.energy(4, 4)
    expected = compressed(server.model.features[3].weight.detach(), energy)
    assert_close(clients["device-0"].mutual.features[3].weight.detach(), expected, **CLOSE)


@pytest.mark.parametrize("travel", ["update", "parameters"])
def test_the_last_evaluation_uses_each_own_network_and_an_empty_broadcast(travel):
    server, clients, _ = played(PRESENT, replace(HYPER, travel=travel))
    assert not server.payload()
    client, x = clients["device-0"], DATA["device-0"].x
    client.receive({})
    own = client.model.eval()
    assert torch.equal(client.predict(x), own(x))


def ready(server):
    server.begin(1, [])
    return next(server.round())


LARGE, STEP = "weights.features.3.weight", 12 + 16 + 1


@pytest.mark.parametrize("length", [0, 1, STEP - 1, STEP + 1, 7 * STEP, 191, 193])
def test_an_impossible_rank_is_refused(length):
    server, clients = fleet(HYPER)
    ask = ready(server)
    sent = dict(play(*fleet(HYPER), 1)[0]["device-0"])
    assert ask.problem_with(sent) is None
    problem = ask.problem_with({**sent, LARGE: torch.zeros(length).double()})
    assert problem.message.startswith(f"{LARGE} is ({length},), ") and "192" in problem.message
    for rank in range(1, 7):
        assert ask.problem_with({**sent, LARGE: torch.zeros(rank * STEP).double()}) is None


def test_too_large_factors_are_refused_and_allowed_factors_leave_a_finite_state():
    server, clients = fleet(HYPER)
    sent = dict(play(*fleet(HYPER), 1)[0]["device-0"])
    ask = ready(server)
    message = torch.full((6 * STEP,), 1e6).double()
    assert "above 1e+06" in ask.problem_with({**sent, LARGE: 1.01 * message}).message
    sent[LARGE] = message
    assert ask.problem_with(sent) is None
    server.begin(1, [])
    story = server.round()
    next(story)
    with pytest.raises(StopIteration):
        story.send([Reply("device-0", 3, sent)])
    assert all(value.isfinite().all() for value in server.state().values())
    assert server.model.features[3].weight.abs().max() < 1e7


def test_a_running_variance_is_sent_unchanged_and_is_refused_below_0():
    server, clients = fleet(HYPER)
    sent = dict(play(*fleet(HYPER), 1)[0]["device-0"])
    ask, key = ready(server), "weights.features.1.running_var"
    assert (sent[key] > 0).all() and "below 0" in ask.problem_with({**sent, key: -sent[key]}).message


def test_the_shared_network_is_the_plain_mean_in_any_order_of_answers():
    ends = []
    up = play(*fleet(HYPER), 1)[0]
    for turned in (False, True):
        server, _ = fleet(HYPER)
        server.begin(1, [])
        story = server.round()
        next(story)
        with pytest.raises(StopIteration):
            story.send([Reply(name, 10 * i, up[name]) for i, name in enumerate(sorted(up, reverse=turned))])
        ends.append(server.state())
    assert same(*ends)


def test_networks_without_any_error_get_finite_gradients():
    client = fleet(replace(HYPER, clip=None))[1]["device-0"]
    x, y = client.data.x[:1], client.data.y[:1]
    client.model.eval(), client.mutual.eval()
    with torch.no_grad():
        for net in (client.model, client.mutual):
            net.head.bias[y] += 1e4
    assert F.cross_entropy(client.model(x), y) == F.cross_entropy(client.mutual(x), y) == 0
    loss = client.objective(x, y)
    loss.backward()
    assert loss.isfinite() and all(p.grad.isfinite().all() for p in client.W_h.parameters())


def test_a_device_with_a_weight_of_nan_still_sends_an_update_that_is_refused():
    server, clients = fleet(HYPER)
    client = clients["device-0"]
    ask = ready(server)
    client.begin(1)
    client.receive(snapshot(ask.payload))
    with torch.no_grad():
        client.W_h.weight.fill_(float("nan"))
    assert "not finite" in ask.problem_with(snapshot(client.run(ask))).message


def test_a_device_keeps_its_own_network_and_map_through_a_restart():
    server, clients, _ = played(PRESENT, HYPER)
    ask, client = next(server.round()), clients["device-0"]
    again = fedkd.METHOD.Client(network(), DATA["device-0"], HYPER, 7, "device-0", shared_network())
    again.rounds = 4
    again.restore(snapshot(client.state()))
    other, _ = fleet(HYPER)
    other.restore(snapshot(server.state()))
    sent = []
    for half, asked in ((client, ask), (again, next(other.round()))):
        half.begin(5)
        half.receive(snapshot(asked.payload))
        sent.append(snapshot(half.run(asked)))
    assert same(*sent) and same(client.state(), again.state())
    assert sent[0].keys() == {f"weights.{key}" for key in shared_network().state_dict()}


def test_the_cost_depends_on_the_ranks_of_the_sent_factors():
    g = shared_network()
    whole = parameters(g)
    assert fedkd.cost(Sizes(network(), 3, mutual=g)).up == {"weights": whole}
    cost = fedkd.cost(Sizes(network(), 3, mutual=g, ranks={LARGE: 2}))
    assert cost.up == {"weights": whole - 192 + 2 * STEP} and cost.down == {"weights": whole}


@pytest.mark.parametrize(
    "setting, problem",
    [
        ({"travel": "both"}, "travel is 'both', it must be one of update, parameters"),
        ({"energy_first": 0.0}, "energy_first is 0.0, it must be above 0 and at most 1"),
        ({"energy_last": 1.1}, "energy_last is 1.1, it must be above 0 and at most 1"),
        ({"kl": "batch"}, "kl is 'batch', it must be one of classes, elements"),
    ],
)
def test_impossible_settings_are_refused_with_value_and_limit(setting, problem):
    with pytest.raises(ValueError) as error:
        fedkd.Hyper(**setting)
    assert str(error.value).startswith(problem)
