"""Tests of Ditto against a plain loop, and of its two limits: FedAvg's global model and SingleSet's models."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from protofleet.methods import apfl, ditto, fedavg, singleset
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import weights_of
from tests.methods.plain import (
    DATA,
    LOCAL,
    PRESENT,
    WITHOUT_2,
    averaged,
    check_models,
    fit,
    halves,
    network,
    order_of,
    played,
)
from tests.methods.tiny import clients_of, member, play, same, server_of, tiny

HYPER = ditto.Hyper(**LOCAL, lam=0.7)
CASES = {
    "as many epochs": (DATA, {}),
    "more epochs": (DATA, {"personal_epochs": 3}),
    "fewer epochs, no momentum": (DATA, {"personal_epochs": 1, "momentum": 0.0, "lam": 2.0}),
    "a class that no device holds": (WITHOUT_2, {}),
}


def plain(devices, hyper):
    own = {name: network() for name in devices}

    def train(model, device, number):
        x = [w.detach().clone() for w in model.parameters()]
        v = list(own[device].parameters())

        def penalised(samples, labels):
            away = sum((a - b).pow(2).sum() for a, b in zip(v, x, strict=True))
            return F.cross_entropy(own[device](samples), labels) + hyper.lam / 2 * away

        def plain_loss(samples, labels):
            return F.cross_entropy(model(samples), labels)

        data, most = devices[device], hyper.personal_epochs or hyper.epochs
        w = list(model.parameters())
        fit(model, w, data, hyper.epochs, hyper, order_of(device, number), plain_loss)
        fit(own[device], v, data, most, hyper, order_of(device, number), penalised)

    shared, _ = averaged(PRESENT, train, data=devices)
    return shared, own


def played_in_float32(module, hyper, rounds=(1, 2, 3)):
    server, clients = server_of(module.METHOD, hyper, norm=True), clients_of(module.METHOD, hyper, norm=True)
    for number in rounds:
        come = {name: client for name, client in clients.items() if (number, name) != (2, "device-1")}
        play(server, come, number)
    return server, clients


@pytest.mark.parametrize(("devices", "variant"), CASES.values(), ids=CASES)
def test_four_rounds_equal_those_of_a_plain_loop(devices, variant):
    hyper = replace(HYPER, **variant)
    server, clients = played(ditto, hyper, devices)
    shared, own = plain(devices, hyper)
    for key, value in shared.items():
        assert_close(server.state()[f"weights.{key}"], value, rtol=1e-9, atol=1e-11)
    check_models(clients, own)


@pytest.mark.parametrize("variant", [{"lam": 3.0, "personal_epochs": 5}, {"lam": 0.0}], ids=str)
def test_the_global_model_has_the_same_bits_as_that_of_fedavg(variant):
    server, _ = played_in_float32(ditto, replace(HYPER, **variant))
    other, _ = played_in_float32(fedavg, fedavg.Hyper(**LOCAL))
    assert same(server.state(), other.state())


def test_a_device_with_lam_0_has_the_same_model_as_with_singleset():
    _, clients = played_in_float32(ditto, replace(HYPER, lam=0.0))
    _, others = played_in_float32(singleset, singleset.LocalHyper(**LOCAL))
    for name, client in clients.items():
        assert same(client.model.state_dict(), others[name].model.state_dict())


def test_a_larger_lam_keeps_the_own_model_nearer_to_the_received_model():
    def distance(lam):
        plain_sgd = replace(HYPER, lam=lam, momentum=0.0, epochs=4)
        clients = played_in_float32(ditto, plain_sgd, rounds=(1,))[1].values()
        received = list(tiny(norm=True).parameters())
        gaps = [
            (v - w).detach() for c in clients for v, w in zip(c.model.parameters(), received, strict=True)
        ]
        return sum(float(gap.square().sum()) for gap in gaps)

    assert distance(5.0) < distance(1.0) < distance(0.0)


def test_the_gradient_of_the_term_is_lam_times_the_difference_of_the_models():
    client = halves(ditto, HYPER)[1]["device-0"]
    with torch.no_grad():
        for i, w in enumerate(client.world.parameters()):
            w.add_(0.1 * (i + 1))
    x, y = client.data.x, client.data.y
    parameters = list(client.model.parameters())
    slopes = torch.autograd.grad(F.cross_entropy(client.model(x), y), parameters)
    found = torch.autograd.grad(client.objective(x, y), parameters)
    for own, received, slope, gradient in zip(
        parameters, client.world.parameters(), slopes, found, strict=True
    ):
        assert_close(gradient, slope + 0.7 * (own - received), rtol=1e-9, atol=1e-12)
    client.objective(x, y).backward()
    assert all(w.grad is None for w in client.world.parameters())


def test_the_own_model_of_a_device_survives_a_restart_and_rounds_without_it():
    server, clients = played(ditto, HYPER)
    for name, client in clients.items():
        again = ditto.METHOD.Client(network(), DATA[name], HYPER, 7, name)
        again.restore(snapshot(client.state()))
        before = snapshot(client.model.state_dict())
        for half in (client, again):
            half.receive(snapshot(server.payload()))
            half.model.eval()
        assert same(client.model.state_dict(), before)
        x = DATA[name].x
        assert torch.equal(again.predict(x), client.predict(x))
        assert not same(weights_of(client.model), snapshot(server.state()))


def test_the_broadcast_of_the_last_evaluation_is_empty():
    server, clients = played(ditto, HYPER)
    assert dict(server.payload()) == {}
    assert set(next(server.round()).payload) == {f"weights.{key}" for key in network().state_dict()}


@pytest.mark.parametrize("module", [apfl, ditto])
def test_an_upload_with_a_wrong_array_is_refused(module):
    server, clients = halves(module, module.METHOD.Hyper(**LOCAL))
    server.begin(1, [member(name, client) for name, client in clients.items()])
    ask, client = next(server.round()), clients["device-0"]
    client.begin(1)
    client.receive(snapshot(ask.payload))
    right = snapshot(client.run(ask))
    name, variance = "weights.features.0.weight", "weights.features.1.running_var"
    assert ask.problem_with(right) is None
    for key, value in (
        (name, torch.full_like(right[name], float("inf"))),
        (name, right[name][:1]),
        (name, right[name].to(torch.int64)),
        (variance, -right[variance] - 1),
        ("own.head.weight", right[name]),
    ):
        assert ask.problem_with({**right, key: value}) is not None, key
    assert ask.problem_with({key: value for key, value in right.items() if key != name}) is not None
    assert ask.problem_with(right, norm=1e-3) is not None


def test_settings_out_of_their_bounds_are_refused():
    for wrong, words in (
        ({"lam": -1.0}, "lam is -1.0, it must be at least 0"),
        ({"personal_epochs": 0}, "at least 1"),
    ):
        with pytest.raises(ValueError, match=words):
            ditto.Hyper(**wrong)
    assert (
        ditto.Hyper(epochs=4).device_epochs == 8
        and ditto.Hyper(epochs=4, personal_epochs=1).device_epochs == 5
    )
