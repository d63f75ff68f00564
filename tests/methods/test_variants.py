"""Tests of settings that turn a method into another one: FedProto of other authors, and a last fit."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch.testing import assert_close

from protofleet.lab.contract.halves import Halves
from protofleet.lab.local.experiment import Experiment
from protofleet.lab.simulation.network import NetworkConditions
from protofleet.methods import fedavg, fedproto
from protofleet.methods.contract.base import Ask
from protofleet.methods.contract.catalog import load
from protofleet.methods.contract.cost import Sizes
from protofleet.methods.contract.plan import Network, Plan
from protofleet.methods.parts.weights import load_weights, weights_of
from protofleet.protocol.settings.reader import SettingsError, decode
from tests.methods.contract.test_cost import plan_of
from tests.methods.tiny import clients_of, play, same, server_of
from tests.support.small_federation import POLICY, assert_same, plan, simulation

WITH_MODELS = {"average_models": True, "inference": "classifier"}
VARIANTS = [
    ("fedavg", {"final_fit": True}, "personal"),
    ("fedproto", {"final_fit": True}, "personal"),
    ("fedproto", WITH_MODELS, "global"),
    ("fedproto", {"average_models": True, "final_fit": True}, "personal"),
]
of_every_variant = pytest.mark.parametrize(("method", "hyper", "view"), VARIANTS)
LOCAL = {"epochs": 2, "batch": 8, "lr": 0.05}


def halves(**more):
    hyper = fedproto.Hyper(**LOCAL, average_models=True, **more)
    return server_of(fedproto.METHOD, hyper), clients_of(fedproto.METHOD, hyper)


# Through the wire


@of_every_variant
def test_each_variant_learns_and_reports_the_accuracy_of_its_view(method, hyper, view, tmp_path):
    run = simulation(tmp_path, method, hyper=hyper).run()
    assert plan(method, **hyper).variant.reports == view
    for agent in run.agents.values():
        assert agent.state.saved.answers[-1].metrics[f"accuracy.test.{view}"] > 2 / 3


@of_every_variant
def test_each_variant_gives_the_same_bits_after_crashes_and_reordered_messages(method, hyper, view, tmp_path):
    run = simulation(tmp_path / "unbroken", method, hyper=hyper).run()
    rough = simulation(tmp_path / "rough", method, NetworkConditions(jitter=0.5, repeat=0.5), 3, hyper=hyper)
    rough.clock.call_at(2.0, rough.boot_coordinator)
    rough.clock.call_at(1.3, lambda: rough.kill("device-1"))
    rough.clock.call_at(2.3, lambda: rough.boot_device("device-1"))
    assert_same(run, rough.run())


# FedProto that averages models


def test_the_global_model_is_the_mean_of_the_models_weighted_by_examples():
    server, clients = halves()
    play(server, clients, 1)
    total = sum(len(c.data.y) for c in clients.values())
    for name, value in weights_of(server.model).items():
        parts = [len(c.data.y) / total * weights_of(c.model)[name].double() for c in clients.values()]
        assert_close(value.double(), sum(parts), rtol=1e-5, atol=1e-7)
    assert server.known.all()


def test_a_device_begins_with_the_global_model_and_not_with_its_own():
    server, clients = halves()
    play(server, clients, 1)
    sent = server.payload()
    client = clients["device-0"]
    assert not same(weights_of(client.model), weights_of(server.model))
    client.receive(sent)
    assert same(weights_of(client.model), weights_of(server.model))
    assert torch.equal(client.prototypes, server.prototypes)


def test_fedproto_sends_no_weights_by_default():
    hyper = fedproto.Hyper(**LOCAL)
    server, clients = server_of(fedproto.METHOD, hyper), clients_of(fedproto.METHOD, hyper)
    before = {name: v.clone() for name, v in weights_of(server.model).items()}
    (up,) = play(server, clients, 1)
    assert all(set(payload) == {"prototypes", "labels", "counts"} for payload in up.values())
    assert same(weights_of(server.model), before) and set(server.payload()) == {"prototypes", "labels"}


def test_a_restored_server_has_the_model_and_the_prototypes():
    server, clients = halves()
    play(server, clients, 1)
    kept = server.state()
    copies = {name: value.clone() for name, value in kept.items()}
    play(server, clients, 2)
    assert same(kept, copies)  # The kept state does not change with the model.
    fresh, _ = halves()
    with torch.no_grad():
        fresh.model.head.weight.zero_()
    fresh.restore(kept)
    assert same(fresh.state(), kept) and not same(server.state(), kept)


def test_the_sent_bytes_equal_the_closed_form():
    for sizes, up, down in Halves(plan_of("fedproto", **WITH_MODELS)).sizes(3):
        cost = load("fedproto").under(fedproto.Hyper(**WITH_MODELS)).cost(sizes)
        assert (cost.bytes_up, cost.bytes_down) == (up, down)
        assert up["weights"] == down["weights"] == sizes.weights.bytes


def test_the_bytes_that_devices_count_equal_the_closed_form(tmp_path):
    run = simulation(tmp_path, "fedproto", hyper=WITH_MODELS).run()
    for agent in run.agents.values():
        crossed = {k: n for (way, k), n in agent.link.meter.payload.items() if way == "up" and n}
        sizes = Sizes(agent.run.job.half.model, held=3)
        once = plan("fedproto", **WITH_MODELS).variant.cost(sizes).up
        expected = Counter(
            {k: POLICY.rounds * n * (4 if k in ("weights", "prototypes") else 8) for k, n in once.items()}
        )
        assert crossed == expected


def test_networks_cannot_be_mixed_if_models_are_averaged():
    own = Network("mlp", 64)
    shared = Plan("fedproto", 3, 1, size=8, network=Network("mlp"), hyper={"average_models": True})
    with pytest.raises(
        SettingsError, match="fedproto with these settings needs the same network on every"
    ) as error:
        shared.device_model(own)
    assert "fedsa" in str(error.value) and "fedproto," not in str(error.value).split("methods")[1]
    table = {"name": "x", "rounds": 1, "method": {"name": "fedproto", "average_models": True}}
    fleet = {"count": 2, "networks": ["cnn4", "resnet10"]}
    network = {"name": "cnn4", "feature_size": 64}
    with pytest.raises(SettingsError, match="needs the same network on every device"):
        decode(Experiment, {**table, "devices": fleet, "network": network, "data": {"split": "iid"}})


# The last fit


@pytest.mark.parametrize("method", [fedavg, fedproto])
def test_the_last_fit_is_one_more_training_from_the_last_received_weights(method):
    client = clients_of(method.METHOD, method.Hyper(**LOCAL, final_fit=True))["device-0"]
    twin = clients_of(method.METHOD, method.Hyper(**LOCAL))["device-0"]
    start = {name: v.clone() for name, v in weights_of(client.model).items()}
    for each in (client, twin):
        each.begin(9)
        each.after_last_round()
    assert same(weights_of(twin.model), start)
    load_weights(twin.model, start)
    twin.generator = lambda phase: type(twin).generator(twin, "settle")
    twin.run(Ask("train"))
    assert same(weights_of(client.model), weights_of(twin.model))


def test_the_personal_model_is_reported_only_if_final_fit_is_on():
    assert fedavg.METHOD.under(fedavg.Hyper()) is fedavg.METHOD
    assert fedproto.METHOD.under(fedproto.Hyper()) == fedproto.METHOD
    table = {"name": "x", "rounds": 1, "method": {"name": "fedavg"}}
    assert decode(Experiment, table).reports == "global"
    assert (
        decode(Experiment, {**table, "method": {"name": "fedavg", "final_fit": True}}).reports == "personal"
    )
