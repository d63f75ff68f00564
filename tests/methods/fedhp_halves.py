"""Helpers that the tests of FedHP share: its halves and the messages between them."""

from __future__ import annotations

from dataclasses import replace

import torch

from protofleet.methods import fedhp
from protofleet.methods.contract.base import Member
from protofleet.methods.maths.geometry import unit
from tests.methods.tiny import (
    SHARDS,
    clients_of,
    normal,
    server_of,
)

HYPER = fedhp.Hyper(epochs=2, batch=8, lr=0.05, init_steps=50)


def halves(hyper=HYPER, shards=SHARDS, **network):
    server, clients = (
        server_of(fedhp.METHOD, hyper, **network),
        clients_of(fedhp.METHOD, hyper, shards, **network),
    )
    return registered(server, clients), clients


def registered(server, clients):
    """Change `begin` so that members have the counts that their devices stated on joining; return the server."""
    begin = server.begin
    server.begin = lambda number, cohort: begin(number, [stated(m, clients[m.device]) for m in cohort])
    return server


def stated(member, client):
    return replace(member, counts=tuple(client.data.y.bincount(minlength=3).tolist()))


def some(clients, *numbers):
    return {name: clients[name] for name in (f"device-{i}" for i in numbers)}


def ask_to(server, clients, number=1):
    server.begin(number, [Member(name, len(c.data.y)) for name, c in sorted(clients.items())])
    return next(server.round())


def client_with(name="device-0", shards=SHARDS, network=None, **changes):
    """Return the client half of a device in the middle of a run, whose anchors and prototypes differ."""
    client = clients_of(fedhp.METHOD, replace(HYPER, **changes), shards, **(network or {}))[name]
    anchors, prototypes = (
        normal(3, client.model.embedding_size, seed=s, dtype=torch.float32) for s in (3, 4)
    )
    client.receive({"anchors": unit(anchors), "prototypes": prototypes})
    return client
