"""Tests of FedPall against a plain loop."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from protofleet.methods import fedpall
from protofleet.methods.contract.base import seeded
from protofleet.methods.nets import mlp
from protofleet.methods.nets.base import initialised_from
from tests.methods.plain import (
    DATA,
    LOCAL,
    PRESENT,
    WITHOUT_2,
    batches,
    check_models,
    fit,
    network,
    order_of,
    played,
)
from tests.methods.plain import in_float64 as in_float64
from tests.methods.tiny import CLASSES, Shard

pytestmark = pytest.mark.usefixtures("in_float64")

HYPER = fedpall.Hyper(
    **LOCAL, mu=0.6, delta=0.5, tau=0.7, beta=0.7, server_epochs=2, server_batch=8, server_lr=0.05
)
D, WIDTH = network().embedding_size, 16


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setattr(mlp, "HIDDEN", WIDTH)


def deep(outputs, bias, *parts):
    with initialised_from(seeded(*parts).initial_seed()):
        return nn.Sequential(
            *(nn.Linear(D, WIDTH, bias), nn.BatchNorm1d(WIDTH), nn.ReLU()),
            *(nn.Linear(WIDTH, WIDTH, bias), nn.BatchNorm1d(WIDTH), nn.ReLU()),
            nn.Linear(WIDTH, outputs, bias),
        )


def first_amplifier(outputs):
    return deep(outputs, False, 7, "server", "amplifier", outputs)


class Server:
    def __init__(self, hyper):
        self.hyper, self.C_g, self.A = hyper, deep(CLASSES, True, 7, "classifier"), first_amplifier(1)
        self.devices, self.G, self.momenta = [], {}, {}

    def welcome(self, present):
        """Add an output to the amplifier for each new device, and keep all existing values."""
        self.devices += [name for name in sorted(present) if name not in self.devices]
        old, n = self.A.state_dict(), len(self.devices)
        if n > len(old["6.weight"]):
            self.A = first_amplifier(n)
            fresh = self.A.state_dict()["6.weight"][len(old["6.weight"]) :].clone()
            self.A.load_state_dict({**old, "6.weight": torch.cat([old["6.weight"], fresh])})
            if "A.6.weight" in self.momenta:
                grown = torch.cat([self.momenta["A.6.weight"], torch.zeros_like(fresh)])
                self.momenta["A.6.weight"] = grown

    def learn(self, sent, order):
        """Train C_g and A by SGD, with a momentum that continues over rounds."""
        h, names = self.hyper, sorted(sent)
        rows = torch.cat([sent[name][0] for name in names])
        labels = torch.cat([sent[name][1] for name in names])
        owners = torch.cat([torch.full((len(sent[n][1]),), self.devices.index(n)) for n in names])
        both = nn.ModuleDict({"C_g": self.C_g, "A": self.A})
        pool = Shard(torch.arange(len(labels)), labels)
        for index, y in batches(both, pool, h.server_batch, h.server_epochs, order):
            loss = F.cross_entropy(self.C_g(rows[index]), y)
            loss = loss + F.cross_entropy(self.A(rows[index]), owners[index])
            named = dict(both.named_parameters())
            gradients = torch.autograd.grad(loss, list(named.values()))
            with torch.no_grad():
                for (name, w), g in zip(named.items(), gradients, strict=True):
                    g = g + h.server_weight_decay * w
                    self.momenta[name] = h.server_momentum * self.momenta.get(name, 0.0) + g
                    w -= h.server_lr * self.momenta[name]


def take_over(H, C_g):
    """Copy only the linear layers of C_g, because batch norms belong to the device."""
    for own, theirs in zip(H, C_g, strict=True):
        if isinstance(own, nn.Linear):
            own.load_state_dict(theirs.state_dict())


def learn(model, data, server, hyper, order):
    A, N = server.A.eval(), len(server.devices)

    def loss(x, y):
        z = model.embed(x)
        p = torch.softmax(A(z), 1)
        found = F.cross_entropy(model.head(z), y) + hyper.mu * (p * (N * p).log()).sum(1).mean()
        terms = []
        for row, label in zip(z, y.tolist(), strict=True):
            near = {c: F.cosine_similarity(row, G, dim=0) / hyper.tau for c, G in server.G.items()}
            if label in near:
                terms.append(torch.logsumexp(torch.stack([*near.values()]), 0) - near[label])
        return found + (hyper.delta * sum(terms) / len(terms) if terms else 0.0)

    fit(model, list(model.parameters()), data, hyper.epochs, hyper, order, loss)
    with torch.no_grad():
        return model.eval().embed(data.x)


def masked(z, y, G, hyper, number, name):
    u = float(torch.rand((), generator=order_of(name, number, "alpha")))
    alpha = round(hyper.alpha_low + (hyper.alpha_high - hyper.alpha_low) * u, 2)
    if hyper.mask == "exact":
        kept = torch.randperm(D, generator=order_of(name, number, "mask")) < int(hyper.beta * D)
    else:
        kept = torch.bernoulli(torch.full((D,), hyper.beta), generator=order_of(name, number, "mask"))
    return kept * torch.stack(
        [alpha * row + (1 - alpha) * G[c] for row, c in zip(z, y.tolist(), strict=True)]
    )


def plain(hyper, devices):
    server, models = Server(hyper), {name: network() for name in devices}
    for model in models.values():
        model.head = deep(CLASSES, True, 7, "classifier")
    for number, present in enumerate(PRESENT, 1):
        server.welcome(present)
        z = {}
        for name in present:
            take_over(models[name].head, server.C_g)
            z[name] = learn(models[name], devices[name], server, hyper, order_of(name, number))
        for c in range(CLASSES):
            held = [
                row for name in present for row, y in zip(z[name], devices[name].y, strict=True) if y == c
            ]
            if held:  # The mean over all samples is the mean of the devices' means, weighted by their counts.
                server.G[c] = torch.stack(held).mean(0)
        sent = {n: (masked(z[n], devices[n].y, server.G, hyper, number, n), devices[n].y) for n in present}
        server.learn(sent, order_of("server", number, "fit"))
    return server, models


@pytest.mark.parametrize("devices", [DATA, WITHOUT_2], ids=["all classes", "a class that no device holds"])
@pytest.mark.parametrize("mask", ["bernoulli", "exact"])
def test_four_rounds_equal_those_of_a_plain_loop(mask, devices):
    hyper = replace(HYPER, mask=mask)
    server, clients = played(fedpall, hyper, devices)
    wanted, models = plain(hyper, devices)
    found = server.models.weights()
    for kind, net in (("classifier", wanted.C_g), ("amplifier", wanted.A)):
        for key, value in net.state_dict().items():
            assert_close(found[f"{kind}.{key}"], value, rtol=1e-8, atol=1e-10)
    payload = server.payload()
    assert payload["labels"].tolist() == sorted(wanted.G) == ([0, 1, 2] if devices is DATA else [0, 1])
    rows = torch.stack([wanted.G[c] for c in sorted(wanted.G)])
    assert_close(payload["prototypes"], rows, rtol=1e-8, atol=1e-10)
    check_models(clients, models)
