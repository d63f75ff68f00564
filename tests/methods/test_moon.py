"""Tests of MOON against a plain loop and values computed by hand."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from protofleet.methods import fedavg, moon
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import weights_of
from tests.methods.plain import (
    DATA,
    LOCAL,
    PRESENT,
    WITHOUT_2,
    averaged,
    fit,
    halves,
    network,
    order_of,
    played,
)
from tests.methods.test_oracles import case, check
from tests.methods.tiny import play, same

HYPER = moon.Hyper(**LOCAL, mu=2.0, tau=0.4)


def plain(devices):
    previous = {name: network().eval() for name in devices}

    def train(model, device, number):
        world, last = copy.deepcopy(model).eval(), previous[device]

        def loss(x, y):
            z = model.embed(x)
            with torch.no_grad():
                near, far = world.embed(x), last.embed(x)
            a, b = (torch.exp(F.cosine_similarity(z, other) / HYPER.tau) for other in (near, far))
            return F.cross_entropy(model.head(z), y) + HYPER.mu * -(a / (a + b)).log().mean()

        data, order = devices[device], order_of(device, number)
        fit(model, list(model.parameters()), data, HYPER.epochs, HYPER, order, loss)
        previous[device] = copy.deepcopy(model).eval()

    return averaged(PRESENT, train, data=devices)


@pytest.mark.parametrize("devices", [DATA, WITHOUT_2], ids=["all classes", "a class that no device holds"])
def test_four_rounds_equal_those_of_a_plain_loop(devices):
    server, _ = played(moon, HYPER, devices)
    shared, _ = plain(devices)
    for key, value in shared.items():
        assert_close(server.payload()[f"weights.{key}"], value, rtol=1e-8, atol=1e-10)


def test_the_contrastive_term_equals_the_oracle():
    given, expected = case("moon.con")
    z, near, far = (given[key] for key in ("z", "z_global", "z_prev"))
    rows = [moon.contrast(z[[i]], near[[i]], far[[i]], given["tau"]) for i in range(len(z))]
    check(expected, per_sample=torch.stack(rows), loss=moon.contrast(z, near, far, given["tau"]))


def test_the_first_round_equals_fedavg_for_any_mu():
    server, clients = halves(moon, moon.Hyper(**LOCAL, mu=5.0))
    other, others = halves(fedavg, fedavg.Hyper(**LOCAL))
    play(server, clients, 1)
    play(other, others, 1)
    for key, value in other.payload().items():
        assert_close(server.payload()[key], value, rtol=1e-10, atol=1e-12)


def test_the_term_is_log_2_if_the_global_and_the_previous_model_are_equal():
    client = halves(moon, HYPER)[1]["device-0"]
    x, y = client.data.x, client.data.y
    assert_close(client.objective(x, y), F.cross_entropy(client.model(x), y) + HYPER.mu * math.log(2))


def test_the_global_and_the_previous_model_get_no_gradient():
    client = halves(moon, HYPER)[1]["device-0"]
    client.objective(client.data.x, client.data.y).backward()
    assert all(p.grad is None for other in (client.world, client.previous) for p in other.parameters())
    assert not client.world.training and not client.previous.training


def test_a_device_keeps_its_last_model_through_a_restart_and_rounds_without_it():
    server, clients = played(moon, HYPER)
    for number, name in ((2, "device-2"), (3, "device-1"), (4, "device-0")):
        client = clients[name]
        assert same(weights_of(client.previous), weights_of(client.model)), (number, name)
        again = moon.METHOD.Client(network(), DATA[name], HYPER, 7, name)
        again.restore(snapshot(client.state()))
        assert same(weights_of(again.previous), weights_of(client.previous))
