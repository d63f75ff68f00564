"""Tests of FedHP against a plain loop."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from protofleet.methods import fedhp
from protofleet.methods.contract.base import seeded
from protofleet.methods.parts.state import snapshot
from tests.methods.plain import (
    DATA,
    LOCAL,
    PRESENT,
    WITHOUT_2,
    batches,
    check_models,
    network,
    order_of,
    played,
)
from tests.methods.plain import in_float64 as in_float64
from tests.methods.tiny import CLASSES

pytestmark = pytest.mark.usefixtures("in_float64")

HYPER = fedhp.Hyper(**LOCAL, lam=0.4, proto_lr=0.05, init_steps=12)
D = network().embedding_size


def first_anchors(hyper):
    """Return the rows that a server of seed 7 draws, after its descent steps on L_U."""
    P = torch.nn.Parameter(torch.rand(CLASSES, D, generator=seeded(7, "server", "anchors")))
    sgd = torch.optim.SGD(
        [P], lr=hyper.init_lr, momentum=hyper.init_momentum, weight_decay=hyper.init_weight_decay
    )
    for _ in range(hyper.init_steps):
        P.data = F.normalize(P.data, dim=1)
        cosines = P @ P.T
        nearest = [
            torch.stack([cosines[i, j] for j in range(CLASSES) if j != i]).max() for i in range(CLASSES)
        ]
        sgd.zero_grad()
        (sum(nearest) / CLASSES).backward()
        sgd.step()
    return F.normalize(P.detach(), dim=1)


class Device:
    """A device of the plain loop: a network, prototypes, and an optimizer for each that continues over rounds."""

    def __init__(self, data, hyper):
        self.data, self.hyper, self.model = data, hyper, network()
        self.pi = torch.zeros(CLASSES, D, requires_grad=True)
        theta = [p for name, p in self.model.named_parameters() if not name.startswith("head.")]
        decay = hyper.weight_decay
        self.sgd = torch.optim.SGD(theta, lr=hyper.lr, momentum=hyper.momentum, weight_decay=decay)
        self.adam = torch.optim.Adam([self.pi], lr=hyper.proto_lr)

    def fit(self, pi_g, anchors, order):
        self.pi.data = pi_g.clone()
        if self.hyper.reset_adam:
            self.adam = torch.optim.Adam([self.pi], lr=self.hyper.proto_lr)
        for x, y in batches(self.model, self.data, self.hyper.batch, self.hyper.epochs, order):
            z = self.model.embed(x)
            gaps = z.unsqueeze(1) - self.pi
            loss = F.cross_entropy(-(gaps.square().sum(2) + 1e-12).sqrt(), y)
            loss = loss + self.hyper.lam * sum(
                1 - F.cosine_similarity(a, p, dim=0) for a, p in zip(anchors, self.pi, strict=True)
            )
            self.sgd.zero_grad()
            self.adam.zero_grad()
            loss.backward()
            self.sgd.step()
            self.adam.step()
        return self.pi.detach().clone()


def plain(hyper, devices):
    anchors = first_anchors(hyper)
    pi_g, fleet = anchors.clone(), {name: Device(data, hyper) for name, data in devices.items()}
    for number, present in enumerate(PRESENT, 1):
        sent = {name: fleet[name].fit(pi_g, anchors, order_of(name, number)) for name in present}
        pi_g = pi_g.clone()
        for c in range(CLASSES):
            w = {name: float((devices[name].y == c).double().mean()) for name in present}
            if sum(w.values()):
                pi_g[c] = sum(w[name] * sent[name][c] for name in present) / sum(w.values())
    return anchors, pi_g, fleet


@pytest.mark.parametrize("devices", [DATA, WITHOUT_2], ids=["all classes", "a class that no device holds"])
@pytest.mark.parametrize("reset", [False, True], ids=["moments kept", "moments reset"])
def test_four_rounds_and_the_last_fit_equal_those_of_a_plain_loop(reset, devices):
    hyper = replace(HYPER, reset_adam=reset)
    server, clients = played(fedhp, hyper, devices)
    anchors, pi_g, fleet = plain(hyper, devices)
    payload = server.payload()
    assert_close(payload["anchors"], anchors, rtol=1e-8, atol=1e-10)
    assert_close(payload["prototypes"], pi_g, rtol=1e-8, atol=1e-10)
    check_models(clients, {name: device.model for name, device in fleet.items()})
    last = len(PRESENT) + 1
    for name, client in clients.items():
        client.begin(last)
        client.receive(snapshot(payload))
        client.after_last_round()
        own = fleet[name].fit(pi_g, anchors, order_of(name, last, "settle"))
        assert_close(client.prototypes.detach(), own, rtol=1e-8, atol=1e-10)
    check_models(clients, {name: device.model for name, device in fleet.items()})
