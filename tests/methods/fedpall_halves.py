"""Helpers that the tests of FedPall share: its halves and the messages between them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from protofleet.methods import fedpall
from protofleet.methods.contract.base import Ask, Reply
from protofleet.methods.nets import mlp
from protofleet.methods.nets.mlp import amplifier
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import weights_of
from tests.methods.tiny import SHARDS, clients_of, normal, server_of, tiny

HYPER = fedpall.Hyper(epochs=2, batch=8, lr=0.05, server_batch=8)


D, C = 6, 3


WIDTH = 32  # Width of the hidden layers of H, C_g and A in these tests; 512 in the paper.


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setattr(mlp, "HIDDEN", WIDTH)


def halves(hyper=HYPER, **network):
    return server_of(fedpall.METHOD, hyper, **network), clients_of(fedpall.METHOD, hyper, **network)


def client_of(device="device-0", data=None, *, norm=False, **changes):
    data = data or SHARDS[device]
    return fedpall.Client(tiny(norm=norm), data, replace(HYPER, **changes), 7, device)


def asks_of(server):
    """Return a list that receives a copy of each further ask of the server half at the moment it is asked."""
    asks, original = [], server.round

    def round():
        story = original()
        ask = next(story)
        while True:
            asks.append(Ask(ask.phase, snapshot(ask.payload), ask.wants))
            try:
                ask = story.send((yield ask))
            except StopIteration:
                return

    server.round = round
    return asks


def only(clients, *numbers):
    return {f"device-{i}": clients[f"device-{i}"] for i in numbers}


def rows(seed=0, n=C):
    return normal(n, D, seed=seed, dtype=torch.float32)


def sure(outputs, seed=5):
    """Return an amplifier with confident outputs; a new one gives nearly equal outputs to all devices."""
    A = amplifier(D, outputs, seed=seed).eval()
    with torch.no_grad():
        A[6].weight.mul_(30)
    return A


def told(client, prototypes=None, labels=range(C), A=None, C_g=None):
    """Let the client receive these values and return it."""
    payload = {} if A is None else weights_of(A, "amplifier")
    payload |= {} if C_g is None else weights_of(C_g, "classifier")
    if prototypes is not None:
        payload |= {"prototypes": prototypes, "labels": torch.tensor(list(labels))}
    client.receive(snapshot(payload))
    return client


def parameters_of(payload):
    """Return a payload without the statistics of batch norms, which no paper counts."""
    return {name: v for name, v in payload.items() if "running" not in name and "tracked" not in name}


def uploads(lengths, seed=0):
    """Return answers with mixed features; the fourth number differs by device, the first three by class."""
    replies = []
    for i, n in enumerate(lengths):
        y = torch.arange(n) % C
        features = 0.3 * rows(seed + i, n)
        features[:, 3] += 2.0 * i
        features[torch.arange(n), y] += 2.0
        replies.append(Reply(f"device-{i}", n, {"features": features, "labels": y}))
    return replies
