"""Methods as plain loops in one process: networks, data and steps without client and server halves.

The orders of samples are the same that a half draws, because they use the same names for the generator; everything
else is written from the papers.
"""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from protofleet.methods.contract.base import Ask, Member, Reply, seeded
from protofleet.methods.parts.state import snapshot
from tests.methods.tiny import SHARDS, Shard, answer, member, play, shard, tiny, with_public_set

LOCAL = {"epochs": 2, "batch": 8, "lr": 0.05}
# The devices of each round. device-3 has only one class and first takes part in round 3.
PRESENT = (
    ("device-0", "device-1", "device-2"),
    ("device-0", "device-2"),
    ("device-1", "device-3"),
    ("device-0", "device-3"),
)
DATA = {
    name: Shard(part.x.double(), part.y) for name, part in {**SHARDS, "device-3": shard(3, (1,) * 6)}.items()
}

# The data of the same devices without the samples of the last class.
WITHOUT_2 = {name: Shard(part.x[part.y != 2], part.y[part.y != 2]) for name, part in DATA.items()}


@pytest.fixture
def in_float64():
    """Make float64 the default type, so that a half makes parts, such as anchors, as exactly as the plain loop."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def network():
    return tiny(norm=True).double()


def counted_features(data, hyper):
    """Return the features and classes that count on a device, computed sample by sample."""
    model, found = network().eval(), []
    for x, label in zip(data.x, data.y.tolist(), strict=True):
        if int((data.y == label).sum()) >= hyper.least_samples:
            z = model.embed(x.unsqueeze(0)).detach()[0]
            found.append((z * math.sqrt(len(z)) / z.norm() if hyper.features == "normalised" else z, label))
    return torch.stack([z for z, _ in found]), torch.tensor([label for _, label in found])


def halves(module, hyper, data=DATA):
    made = {name: module.METHOD.Client(network(), part, hyper, 7, name) for name, part in data.items()}
    clients = {name: with_public_set(client) for name, client in made.items()}
    return with_public_set(module.METHOD.Server(network(), hyper, 7)), clients


def played(module, hyper, data=DATA, rounds=PRESENT):
    server, clients = halves(module, hyper, data)
    for number, present in enumerate(rounds, 1):
        play(server, {name: clients[name] for name in present}, number)
    return server, clients


def order_of(device, number, purpose="train"):
    return seeded(7, number, device, purpose)


def batches(model, data, size, epochs, order):
    """Yield batches with the model in training mode; for a batch of one, batch norms use their stored statistics."""
    torch.randint(1 << 62, (), generator=order)  # Draws the seed of random layers; this network has none.
    for _ in range(epochs):
        for rows in torch.randperm(len(data.y), generator=order).split(size):
            model.train()
            for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm1d)):
                norm.train(len(rows) > 1)
            yield data.x[rows], data.y[rows]


def check_models(clients, models):
    """Compare the network of each device with the network of the plain loop."""
    for name, model in models.items():
        for key, value in model.state_dict().items():
            torch.testing.assert_close(clients[name].model.state_dict()[key], value, rtol=1e-8, atol=1e-10)


def fit(model, part, data, epochs, hyper, order, loss):
    """Train only these parameters by plain SGD."""
    sgd = torch.optim.SGD(part, lr=hyper.lr, momentum=hyper.momentum, weight_decay=hyper.weight_decay)
    for x, y in batches(model, data, hyper.batch, epochs, order):
        for parameter, gradient in zip(part, torch.autograd.grad(loss(x, y), part), strict=True):
            parameter.grad = gradient
        sgd.step()


def averaged(rounds, train, travels=lambda key: True, data=DATA, make=network):
    """Run FedAvg on the values that travel, and return the shared values and the models of all devices.

    In each round it calls `train(model, device, number)` once for each device that takes part.
    """
    models = {name: make() for name in data}
    shared = {key: value.clone() for key, value in make().state_dict().items() if travels(key)}
    for number, present in enumerate(rounds, 1):
        total, came = sum(len(data[name].y) for name in present), {}
        for name in present:
            models[name].load_state_dict({**models[name].state_dict(), **shared})
            train(models[name], name, number)
            came[name] = copy.deepcopy(models[name].state_dict())
        for key, value in shared.items():
            if value.is_floating_point():
                shared[key] = sum(len(data[name].y) / total * came[name][key] for name in present)
            else:
                shared[key] = came[present[0]][key]
    return shared, models


def rounds_with_a_late_answer(server, clients, rounds):
    """Play rounds in each of which the answer of one device is late, and yield after each round."""
    for number, present in enumerate(rounds, 1):
        server.begin(number, [member(name, clients[name]) for name in present])
        story = server.round()
        ask = next(story)
        replies = [Reply(name, len(DATA[name].y), answer(clients[name], ask, number)) for name in present]
        replies.pop(number % len(present))
        with pytest.raises(StopIteration):
            story.send(replies)
        yield number


def demand_answer_is_left_out(server, clients, spoil):
    """Play a round in which the spoilt statistics of one device fit the task, but are not used."""
    sent = {name: snapshot(clients[name].run(Ask("describe"))) for name in ("device-0", "device-1")}
    server.begin(1, [Member(name, len(DATA[name].y)) for name in sent])
    story, bad = server.round(), spoil(sent["device-0"])
    ask = next(story)
    assert ask.problem_with(bad, 24) is None
    with pytest.raises(StopIteration):
        story.send([Reply("device-0", 24, bad), Reply("device-1", 18, sent["device-1"])])
    assert [reply.device for reply in server.answers.replies()] == ["device-1"]
