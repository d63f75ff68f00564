"""Methods that share a part of the model: beside plain loops in one process, which know nothing of halves."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from protofleet.methods import fedavg, fedbn, fedrep, lgfedavg
from protofleet.methods.contract.base import seeded
from protofleet.methods.contract.plan import Network, Plan
from protofleet.methods.parts.local import LocalHyper
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import keys_of_norms
from tests.methods.tiny import SHARDS, Shard, floats, play, same, server_of, shard, tiny

LOCAL = {"epochs": 2, "batch": 8, "lr": 0.05}
HYPERS = {
    fedbn: LocalHyper(**LOCAL),
    lgfedavg: LocalHyper(**LOCAL),
    fedrep: fedrep.Hyper(**LOCAL, head_epochs=3, base_epochs=2),
}
NORM = ("features.1.",)  # of the tiny network
TRAVELS = {  # by the beginnings of names, which the tests may know
    fedbn: lambda key: not key.startswith(NORM),
    lgfedavg: lambda key: key.startswith("head."),
    fedrep: lambda key: not key.startswith("head."),
}
# Who takes part in each round; the last one has a single class and comes late.
PRESENT = (
    ("device-0", "device-1", "device-2"),
    ("device-0", "device-2"),
    ("device-1", "device-3"),
    ("device-0", "device-3"),
)
DATA = {
    name: Shard(part.x.double(), part.y) for name, part in {**SHARDS, "device-3": shard(3, (1,) * 6)}.items()
}
every_method = pytest.mark.parametrize("module", HYPERS, ids=lambda m: m.__name__.rpartition(".")[2])


def network():
    return tiny(norm=True).double()


def halves(module, hyper=None):
    hyper = hyper or HYPERS[module]
    clients = {name: module.METHOD.Client(network(), part, hyper, 7, name) for name, part in DATA.items()}
    return module.METHOD.Server(network(), hyper, 7), clients


def steps(model, part, data, epochs, hyper, order):
    """Plain SGD of these parameters, the samples in the order that is drawn for this device and round."""
    torch.randint(1 << 62, (), generator=order)  # the seed of layers that draw, of which there are none here
    sgd = torch.optim.SGD(part, lr=hyper.lr, momentum=hyper.momentum, weight_decay=hyper.weight_decay)
    for _ in range(epochs):
        for rows in torch.randperm(len(data.y), generator=order).split(hyper.batch):
            model.train()
            for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm1d)):
                norm.train(len(rows) > 1)
            loss = F.cross_entropy(model(data.x[rows]), data.y[rows])
            for parameter, gradient in zip(part, torch.autograd.grad(loss, part), strict=True):
                parameter.grad = gradient
            sgd.step()


def plain(module, rounds=PRESENT):
    """What is everybody's after these rounds, and every device's model."""
    hyper, travels = HYPERS[module], TRAVELS[module]
    models = {name: network() for name in DATA}
    shared = {key: value.clone() for key, value in network().state_dict().items() if travels(key)}
    for number, present in enumerate(rounds, 1):
        total, came = sum(len(DATA[name].y) for name in present), {}
        for name in present:
            model = models[name]
            model.load_state_dict({**model.state_dict(), **shared})
            draw = lambda purpose, name=name, number=number: seeded(7, number, name, purpose)  # noqa: E731
            if module is fedrep:
                head = list(model.head.parameters())
                base = [p for key, p in model.named_parameters() if not key.startswith("head.")]
                steps(model, head, DATA[name], hyper.head_epochs, hyper, draw("train-head"))
                steps(model, base, DATA[name], hyper.base_epochs, hyper, draw("train-base"))
            else:
                steps(model, list(model.parameters()), DATA[name], hyper.epochs, hyper, draw("train"))
            came[name] = copy.deepcopy(model.state_dict())
        for key, value in shared.items():
            if value.is_floating_point():
                shared[key] = sum(len(DATA[name].y) / total * came[name][key] for name in present)
            else:
                shared[key] = came[present[0]][key]
    return shared, models


def played(module):
    server, clients = halves(module)
    for number, present in enumerate(PRESENT, 1):
        play(server, {name: clients[name] for name in present}, number)
    return server, clients


@every_method
def test_four_rounds_are_those_of_a_plain_loop(module):
    server, clients = played(module)
    shared, models = plain(module)
    found = {key.removeprefix("weights."): value for key, value in server.payload().items()}
    assert found.keys() == shared.keys()
    for key, value in shared.items():
        assert_close(found[key], value, rtol=1e-10, atol=1e-12)
    for name, model in models.items():
        for key, value in model.state_dict().items():
            assert_close(clients[name].model.state_dict()[key], value, rtol=1e-10, atol=1e-12)


@every_method
def test_what_is_private_never_travels_and_outlasts_a_restart(module):
    server, clients = played(module)
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
def test_nothing_of_a_device_is_lost_to_one_that_has_no_samples(module):
    server, clients = halves(module)
    clients["nobody"] = module.METHOD.Client(
        network(), Shard(DATA["device-0"].x[:0], DATA["device-0"].y[:0]), HYPERS[module], 7, "nobody"
    )
    play(server, clients, 1)
    assert all(value.isfinite().all() for value in server.state().values())


# FedBN


def test_the_norms_of_a_resnet_are_found_by_type():
    model = Plan("fedbn", 3, 3, 7, 16, Network("resnet10"), {}).model()
    norms = {name for name, part in model.named_modules() if isinstance(part, nn.BatchNorm2d)}
    assert any("downsample" in name or "shortcut" in name for name in norms), "else this test shows nothing"
    kept = {key.rpartition(".")[0] for key in keys_of_norms(model)}
    assert kept == norms
    server = fedbn.Server(model, LocalHyper(), 7)
    assert not {key.rpartition(".")[0] for key in server.shared_keys()} & norms


def test_layers_that_keep_no_statistics_are_averaged():
    model = nn.Sequential(nn.Linear(2, 4), nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.BatchNorm1d(4))
    assert {key.partition(".")[0] for key in keys_of_norms(model)} == {"3"}


def test_without_batch_norms_fedbn_is_fedavg():
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


# LG-FedAvg


def test_only_the_head_crosses_and_the_networks_below_may_differ():
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


def test_each_part_is_trained_while_the_other_is_fixed():
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


def test_the_head_has_as_many_epochs_as_all_else_would_unless_it_is_told():
    server, clients = halves(fedrep, fedrep.Hyper(**LOCAL))
    client, batches = clients["device-0"], []
    client.receive(snapshot(server.payload()))
    objective = client.objective
    client.objective = lambda x, y: (batches.append(len(y)), objective(x, y))[1]
    client.learn("train")
    assert len(batches) == 3 * (2 + 1)
