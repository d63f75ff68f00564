"""Tests of APFL against a plain loop, and of its limits: FedAvg's global model and SingleSet's models."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from protofleet.methods import apfl, fedavg, singleset
from protofleet.methods.maths.mixtures import mixed, moved_alpha
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import weights_of
from tests.methods.plain import (
    DATA,
    LOCAL,
    PRESENT,
    WITHOUT_2,
    averaged,
    batches,
    check_models,
    halves,
    network,
    order_of,
    played,
)
from tests.methods.test_ditto import played_in_float32
from tests.methods.tiny import member, normal, same

HYPER = apfl.Hyper(**LOCAL, alpha=0.25, weight_decay=1e-2)
CASES = {
    "a fixed share": (DATA, {}),
    "an adaptive share": (DATA, {"adaptive": True}),
    "clipped gradients": (DATA, {"clip": 0.5, "alpha": 0.75}),
    "no momentum and no decay": (DATA, {"momentum": 0.0, "weight_decay": 0.0}),
    "a class that no device holds": (WITHOUT_2, {}),
}


def plain(devices, hyper):
    own, mixtures = ({name: network() for name in devices} for _ in range(2))
    alphas = dict.fromkeys(devices, hyper.alpha)

    def train(model, device, number):
        v, u, w = (list(net.parameters()) for net in (own[device], mixtures[device], model))
        speeds = {"v": [torch.zeros_like(p) for p in v], "w": [torch.zeros_like(p) for p in w]}
        first = hyper.adaptive
        both = nn.ModuleList([model, mixtures[device]])
        for x, y in batches(both, devices[device], hyper.batch, hyper.epochs, order_of(device, number)):
            a = alphas[device]
            mix(v, w, u, a)
            down_w, down_u = (
                slope(net, part, x, y, hyper) for net, part in ((model, w), (mixtures[device], u))
            )
            with torch.no_grad():
                if first:
                    steep = sum(((p - q) * g).sum() for p, q, g in zip(v, w, down_u, strict=True))
                    alphas[device], first = min(1.0, max(0.0, a - hyper.lr * float(steep))), False
                for part, speed, down in ((v, "v", [a * g for g in down_u]), (w, "w", down_w)):
                    for p, m, g in zip(part, speeds[speed], down, strict=True):
                        m.mul_(hyper.momentum).add_(g)
                        p.sub_(hyper.lr * m)
        mix(v, w, u, alphas[device])

    shared, _ = averaged(PRESENT, train, data=devices)
    return shared, own, mixtures, alphas


def mix(v, w, u, a):
    with torch.no_grad():
        for p, q, r in zip(v, w, u, strict=True):
            r.copy_(a * p + (1 - a) * q)


def slope(net, part, x, y, hyper):
    found = torch.autograd.grad(F.cross_entropy(net(x), y), part)
    norm = float(torch.stack([g.square().sum() for g in found]).sum().sqrt())
    shrink = 1.0 if hyper.clip is None else min(1.0, hyper.clip / (norm + 1e-6))
    return [shrink * g + hyper.weight_decay * p.detach() for g, p in zip(found, part, strict=True)]


@pytest.mark.parametrize(("devices", "variant"), CASES.values(), ids=CASES)
def test_four_rounds_equal_those_of_a_plain_loop(devices, variant):
    hyper = replace(HYPER, **variant)
    server, clients = played(apfl, hyper, devices)
    shared, own, mixtures, alphas = plain(devices, hyper)
    for key, value in shared.items():
        assert_close(server.payload()[f"weights.{key}"], value, rtol=1e-9, atol=1e-11)
    check_models(clients, mixtures)
    for name, client in clients.items():
        assert client.alpha == pytest.approx(alphas[name], abs=1e-9)
        for found, expected in zip(client.own.parameters(), own[name].parameters(), strict=True):
            assert_close(found, expected, rtol=1e-8, atol=1e-10, check_stride=False)


@pytest.mark.parametrize("variant", [{"alpha": 1.0}, {"adaptive": True, "clip": 0.3}], ids=str)
def test_the_global_model_has_the_same_bits_as_that_of_fedavg(variant):
    server, _ = played_in_float32(apfl, replace(HYPER, **variant))
    same_budget = fedavg.Hyper(**LOCAL, weight_decay=HYPER.weight_decay, clip=variant.get("clip"))
    other, _ = played_in_float32(fedavg, same_budget)
    assert same(server.state(), other.state())


@pytest.mark.parametrize("clip", [None, 0.3])
def test_a_device_with_alpha_1_has_the_same_model_as_with_singleset(clip):
    _, clients = played_in_float32(apfl, replace(HYPER, alpha=1.0, clip=clip))
    budget = singleset.LocalHyper(**LOCAL, weight_decay=HYPER.weight_decay, clip=clip)
    _, others = played_in_float32(singleset, budget)
    for name, client in clients.items():
        assert same(client.model.state_dict(), others[name].model.state_dict())


def test_a_device_with_alpha_0_uses_the_received_parameters():
    server, clients = played_in_float32(apfl, replace(HYPER, alpha=0.0))
    first = played_in_float32(apfl, HYPER, rounds=())[1]
    for name, client in clients.items():
        assert same(weights_of(client.own), weights_of(first[name].own))
        client.receive(snapshot(server.payload()))
        for found, expected in zip(client.model.parameters(), server.model.parameters(), strict=True):
            assert torch.equal(found, expected)


def test_the_mixture_and_the_step_of_alpha_equal_sums_over_single_numbers():
    own, shared, gradient = (normal(3, 4, seed=seed) for seed in range(3))
    flat = [tensor.flatten().tolist() for tensor in (own, shared, gradient)]
    for alpha in (0.0, 0.3, 0.8, 1.0):
        expected = [alpha * v + (1 - alpha) * w for v, w, _ in zip(*flat, strict=True)]
        assert_close(
            mixed(own, shared, alpha).flatten(),
            torch.tensor(expected, dtype=torch.float64),
            rtol=1e-9,
            atol=1e-12,
        )
    steep = sum((v - w) * g for v, w, g in zip(*flat, strict=True))
    parts = [(own[:2], shared[:2], gradient[:2]), (own[2], shared[2], gradient[2])]
    assert moved_alpha(0.5, 0.01, parts) == pytest.approx(0.5 - 0.01 * steep, abs=1e-12)
    assert {moved_alpha(0.5, 1e3, parts), moved_alpha(0.5, -1e3, parts)} == {0.0, 1.0}


def test_alpha_changes_by_the_derivative_of_the_loss_with_respect_to_alpha():
    own, shared, x = (normal(5, 3, seed=seed) for seed in range(3))
    alpha = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    u = alpha * own + (1 - alpha) * shared
    u.retain_grad()
    (u * x).exp().mean().backward()
    found = moved_alpha(0.4, 0.1, [(own, shared, u.grad)])
    assert found == pytest.approx(0.4 - 0.1 * float(alpha.grad), abs=1e-12) and found != 0.4


def test_alpha_changes_once_in_a_round_for_any_number_of_batches(monkeypatch):
    moved = []
    monkeypatch.setattr(apfl, "moved_alpha", lambda *given: moved.append(given) or 0.6)
    _, clients = played(apfl, replace(HYPER, adaptive=True, epochs=3))
    assert len(moved) == sum(len(present) for present in PRESENT)
    assert all(client.alpha == 0.6 for client in clients.values())


def test_the_last_broadcast_is_mixed_with_the_kept_model_also_after_a_restart():
    hyper = replace(HYPER, adaptive=True)
    server, clients = played(apfl, hyper)
    for name, client in clients.items():
        kept, before = snapshot(client.state()), copy.deepcopy(client.model)
        again = apfl.METHOD.Client(network(), DATA[name], hyper, 7, name)
        again.restore(kept)
        for half in (client, again):
            half.receive(snapshot(server.payload()))
            half.model.eval()
        assert client.alpha == again.alpha != hyper.alpha
        assert same(client.model.state_dict(), again.model.state_dict())
        assert torch.equal(client.predict(DATA[name].x), again.predict(DATA[name].x))
        found, statistics = client.model.state_dict(), dict(before.named_buffers())
        for key, own in client.own.named_parameters():
            w = server.payload()[f"weights.{key}"]
            assert_close(found[key], client.alpha * own + (1 - client.alpha) * w, rtol=1e-9, atol=1e-12)
        assert statistics and all(torch.equal(found[key], value) for key, value in statistics.items())


def test_a_device_sends_no_value_of_its_own_model_and_no_alpha():
    server, clients = halves(apfl, HYPER)
    server.begin(1, [member(name, client) for name, client in clients.items()])
    ask, client = next(server.round()), clients["device-0"]
    with torch.no_grad():
        for v in client.own.parameters():
            v.fill_(float("nan"))
    client.begin(1)
    client.receive(snapshot(ask.payload))
    client.alpha = float("nan")
    sent = client.run(ask)
    assert sent.keys() == ask.wants.keys() and ask.problem_with(sent) is None


def test_alpha_above_1_is_refused():
    with pytest.raises(ValueError, match=r"alpha is 1.1, it must be at least 0 and at most 1"):
        apfl.Hyper(alpha=1.1)
