"""Tests of methods that share a part of the model, against plain loops in one process without halves."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from protofleet.methods import fedavg, fedbn, fedper, fedrep, lgfedavg, singleset
from protofleet.methods.contract.base import Ask
from protofleet.methods.contract.plan import Network, Plan
from protofleet.methods.parts.local import LocalHyper
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import keys_of_norms
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
from tests.methods.tiny import SHARDS, Shard, floats, play, same, server_of, tiny

HYPERS = {
    fedbn: LocalHyper(**LOCAL),
    fedper: LocalHyper(**LOCAL),
    lgfedavg: LocalHyper(**LOCAL),
    fedrep: fedrep.Hyper(**LOCAL, head_epochs=3, base_epochs=2),
}
NORM = ("features.1.",)  # The norm of the tiny network.
TRAVELS = {  # Which values travel, by the prefixes of their names, which the tests may know.
    fedbn: lambda key: not key.startswith(NORM),
    fedper: lambda key: not key.startswith("head."),
    lgfedavg: lambda key: key.startswith("head."),
    fedrep: lambda key: not key.startswith("head."),
}
every_method = pytest.mark.parametrize("module", HYPERS, ids=lambda m: m.__name__.rpartition(".")[2])


def plain(module, shards):
    hyper = HYPERS[module]

    def train(model, device, number):
        data, loss = shards[device], lambda x, y: F.cross_entropy(model(x), y)
        if module is not fedrep:
            fit(model, list(model.parameters()), data, hyper.epochs, hyper, order_of(device, number), loss)
            return
        head = list(model.head.parameters())
        base = [p for key, p in model.named_parameters() if not key.startswith("head.")]
        fit(model, head, data, hyper.head_epochs, hyper, order_of(device, number, "train-head"), loss)
        fit(model, base, data, hyper.base_epochs, hyper, order_of(device, number, "train-base"), loss)

    return averaged(PRESENT, train, TRAVELS[module], shards)


@every_method
@pytest.mark.parametrize("shards", [DATA, WITHOUT_2], ids=["three classes", "a class that no device holds"])
def test_four_rounds_equal_those_of_a_plain_loop(module, shards):
    server, clients = played(module, HYPERS[module], shards)
    shared, models = plain(module, shards)
    found = {key.removeprefix("weights."): value for key, value in server.payload().items()}
    assert found.keys() == shared.keys()
    for key, value in shared.items():
        assert_close(found[key], value, rtol=1e-10, atol=1e-12)
    for name, model in models.items():
        for key, value in model.state_dict().items():
            assert_close(clients[name].model.state_dict()[key], value, rtol=1e-10, atol=1e-12)


@every_method
def test_the_private_part_of_a_model_is_never_sent_and_survives_a_restart(module):
    server, clients = played(module, HYPERS[module])
    keys, travels = set(network().state_dict()), TRAVELS[module]
    for half in (server, *clients.values()):
        assert {key.removeprefix("weights.") for key in half.shared()} == {
            key for key in keys if travels(key)
        }
    client = clients["device-0"]
    kept = snapshot(client.state())
    assert {key.removeprefix("weights.") for key in kept} == {key for key in keys if not travels(key)}
    again = module.METHOD.Client(network(), DATA["device-0"], HYPERS[module], 7, "device-0")
    again.restore(kept)
    again.receive(snapshot(server.payload()))
    client.receive(snapshot(server.payload()))
    assert same(again.model.state_dict(), client.model.state_dict())


@every_method
def test_a_device_without_samples_takes_part(module):
    server, clients = halves(module, HYPERS[module])
    clients["nobody"] = module.METHOD.Client(
        network(), Shard(DATA["device-0"].x[:0], DATA["device-0"].y[:0]), HYPERS[module], 7, "nobody"
    )
    play(server, clients, 1)
    assert all(value.isfinite().all() for value in server.state().values())


# FedBN


def test_the_batch_norms_of_a_resnet_are_found_by_their_type():
    model = Plan("fedbn", 3, 3, 7, 16, Network("resnet10"), {}).model()
    norms = {name for name, part in model.named_modules() if isinstance(part, nn.BatchNorm2d)}
    assert any("downsample" in name or "shortcut" in name for name in norms), (
        "otherwise this test shows nothing"
    )
    kept = {key.rpartition(".")[0] for key in keys_of_norms(model)}
    assert kept == norms
    server = fedbn.Server(model, LocalHyper(), 7)
    assert not {key.rpartition(".")[0] for key in server.shared_keys()} & norms


def test_only_batch_norms_are_excluded_from_averaging():
    model = nn.Sequential(nn.Linear(2, 4), nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.BatchNorm1d(4))
    assert {key.partition(".")[0] for key in keys_of_norms(model)} == {"3"}


def test_fedbn_without_batch_norms_equals_fedavg():
    server, clients = (
        server_of(fedbn.METHOD, HYPERS[fedbn]),
        {name: fedbn.METHOD.Client(tiny(), part, HYPERS[fedbn], 7, name) for name, part in SHARDS.items()},
    )
    other, others = (
        server_of(fedavg.METHOD, HYPERS[fedbn]),
        {
            name: fedavg.METHOD.Client(tiny(), part, fedavg.Hyper(**LOCAL), 7, name)
            for name, part in SHARDS.items()
        },
    )
    for number in (1, 2):
        play(server, clients, number)
        play(other, others, number)
    assert same(server.payload(), other.payload())


# FedPer


def test_fedper_with_one_device_equals_singleset():
    server, clients = halves(fedper, HYPERS[fedper])
    _, alone = halves(singleset, HYPERS[fedper])
    for number in (1, 2, 3):
        play(server, {"device-0": clients["device-0"]}, number)
        alone["device-0"].begin(number)
        alone["device-0"].run(Ask("train"))
    assert same(clients["device-0"].model.state_dict(), alone["device-0"].model.state_dict())


def test_fedper_trains_base_and_head_with_each_batch():
    client = halves(fedper, replace(HYPERS[fedper], epochs=1, batch=100))[1]["device-0"]
    before = snapshot(client.model.state_dict())
    client.begin(1)
    client.run(Ask("train"))
    assert not [key for key, value in client.model.state_dict().items() if torch.equal(value, before[key])]


def test_the_server_of_fedper_refuses_a_head_and_impossible_values():
    server, clients = halves(fedper, HYPERS[fedper])
    server.begin(1, [])
    ask, client = next(server.round()), clients["device-0"]
    right, name = snapshot(client.shared()), "weights.projector.weight"
    assert ask.problem_with(right) is None and ask.problem_with(right, norm=1e-3) is not None
    for key, value in (
        ("weights.head.bias", torch.zeros(3)),
        ("weights.features.1.running_var", torch.full((8,), -1.0)),
        (name, torch.full((6, 8), float("nan"))),
        (name, right[name][:1]),
    ):
        assert ask.problem_with({**right, key: value}) is not None


# LG-FedAvg


def test_devices_of_lgfedavg_with_different_networks_send_only_the_head():
    assert lgfedavg.METHOD.mixed_networks
    server = server_of(lgfedavg.METHOD, HYPERS[lgfedavg])
    clients = {
        name: lgfedavg.METHOD.Client(tiny(i, norm=i == 1), part, HYPERS[lgfedavg], 7, name)
        for i, (name, part) in enumerate(SHARDS.items())
    }
    up = play(server, clients, 1)[0]
    assert {name: floats(payload) for name, payload in up.items()} == dict.fromkeys(
        clients, {"weights": 6 * 3 + 3}
    )


# FedRep


def test_fedrep_trains_the_head_first_and_each_part_while_the_other_is_fixed():
    server, clients = halves(fedrep, replace(HYPERS[fedrep], base_epochs=1, clip=0.5))
    client = clients["device-0"]
    client.begin(1)
    client.receive(snapshot(server.payload()))
    before, seen = snapshot(client.model.state_dict()), []
    objective = client.objective
    client.objective = lambda x, y: (
        seen.append({k for k, p in client.model.named_parameters() if p.requires_grad}),
        objective(x, y),
    )[1]
    client.learn("train")
    head = {key for key, _ in client.model.named_parameters() if key.startswith("head.")}
    assert set(map(frozenset, seen)) == {
        frozenset(head),
        frozenset(dict(client.model.named_parameters()).keys() - head),
    }
    assert len(seen) == 3 * 3 + 3, "three batches each epoch, the head first"
    assert all(p.requires_grad for p in client.model.parameters())
    assert all(not torch.equal(before[key], value) for key, value in client.model.state_dict().items())


def test_fedrep_trains_only_the_head_if_the_whole_base_is_frozen():
    hyper = fedrep.Hyper(**LOCAL)
    model = tiny(projector=False, norm=True, frozen=True)
    client = fedrep.METHOD.Client(model, SHARDS["device-0"], hyper, 7, "device-0")
    before, seen = snapshot(client.model.state_dict()), []
    objective = client.objective
    client.objective = lambda x, y: (seen.append(len(y)), objective(x, y))[1]
    client.begin(1)
    client.learn("train")
    moved = {key for key, value in client.model.state_dict().items() if not torch.equal(value, before[key])}
    assert moved == {"head.weight", "head.bias"} and len(seen) == 3 * 2, "the base needs no pass"


def test_head_epochs_is_the_number_of_epochs_by_default():
    server, clients = halves(fedrep, fedrep.Hyper(**LOCAL))
    client, batches = clients["device-0"], []
    client.receive(snapshot(server.payload()))
    objective = client.objective
    client.objective = lambda x, y: (batches.append(len(y)), objective(x, y))[1]
    client.learn("train")
    assert len(batches) == 3 * (2 + 1)
