"""Helpers that the tests of FedSA share: its halves and the messages between them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from protofleet.methods import fedsa
from protofleet.methods.contract.base import Reply
from tests.methods.tiny import (
    SHARDS,
    clients_of,
    normal,
    server_of,
)

HYPER = fedsa.Hyper(epochs=2, batch=8, lr=0.05)


TABLE, UP = 3 * 6, {"prototypes": 3 * 6, "labels": 3, "counts": 3}


def halves(hyper=HYPER, shards=SHARDS, **network):
    return server_of(fedsa.METHOD, hyper, **network), clients_of(fedsa.METHOD, hyper, shards, **network)


def single(*shape, seed=0):
    return normal(*shape, seed=seed, dtype=torch.float32)


def client_with(device="device-0", **changes):
    """Return the client half of a device that has received normally distributed anchors, with margin 0.7."""
    client = clients_of(fedsa.METHOD, replace(HYPER, **changes))[device]
    client.receive({"anchors": single(3, 6)})
    client.margin = torch.tensor(0.7)
    return client


def sent_by(device, rows, labels, counts):
    payload = {"prototypes": rows, "labels": torch.tensor(labels), "counts": torch.tensor(counts)}
    return Reply(device, sum(counts), payload)


def told(server, *replies):
    """Play one round in which the server receives exactly these answers, and return the server."""
    story = server.round()
    ask = next(story)
    assert [problem for r in replies if (problem := ask.problem_with(r.payload))] == []
    with pytest.raises(StopIteration):
        story.send(list(replies))
    return server


def gradients(client):
    client.model.zero_grad()
    client.objective(client.data.x, client.data.y).backward()
    return {name: w.grad.clone() for name, w in client.model.named_parameters()}
