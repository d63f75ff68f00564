"""A network and data that are small enough to check by hand, and a direct connection of both halves of a method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from protofleet.methods.contract.base import Ask, ClientHalf, Member, Method, Payload, Reply, ServerHalf
from protofleet.methods.contract.public import PublicSet
from protofleet.methods.nets.base import Net, initialised_from
from protofleet.methods.parts.state import snapshot

CLASSES = 3
Half = TypeVar("Half", ClientHalf, ServerHalf)

torch.set_num_threads(1)


@dataclass(frozen=True)
class Shard:
    x: Tensor
    y: Tensor


def tiny(seed: int = 0, *, projector: bool = True, norm: bool = False, frozen: bool = False) -> Net:
    net = made(seed, projector=projector, norm=norm)
    if frozen:
        net.freeze_backbone()
    return net


def made(seed: int, *, projector: bool, norm: bool) -> Net:
    with initialised_from(seed):
        layers = [nn.Linear(4, 8), *([nn.BatchNorm1d(8)] if norm else []), nn.ReLU()]
        features = nn.Sequential(*layers)
        if projector:
            return Net(features, 8, CLASSES, projector=nn.Linear(8, 6), embedding_size=6)
        return Net(features, 8, CLASSES)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def shard(seed: int, labels: Sequence[int] = (0, 1, 2) * 8) -> Shard:
    """Return three clusters along three axes; the fourth axis has an offset that differs from device to device."""
    y = torch.tensor(labels, dtype=torch.int64)
    x = 0.4 * normal(len(y), 4, seed=seed, dtype=torch.float32) + 2.0 * torch.eye(4)[y]
    x[:, 3] += seed
    return Shard(x, y)


SHARDS = {
    "device-0": shard(0),
    "device-1": shard(1, (0, 1) * 9),
    "device-2": shard(2, (2,) * 5 + (0,) * 2),
}


# The public set on which devices compare their networks; its last batch has three images.
PUBLIC = PublicSet(samples=9, batch=6)


def with_public_set(half: Half) -> Half:
    """Give a half the public set as a plan does, on the device of the half's network; return the half."""
    if isinstance(half, ServerHalf):
        half.public = PUBLIC
    else:
        first = next(half.model.parameters())
        images = normal(PUBLIC.samples, 4, seed=9).to(first.device, first.dtype)
        half.public = torch.split(images, list(PUBLIC.batches))
    return half


def clients_of(
    method: Method, hyper: object, shards: Mapping[str, Shard] = SHARDS, **network: bool
) -> dict[str, ClientHalf]:
    return {
        name: with_public_set(method.Client(tiny(**network), data, hyper, 7, name))
        for name, data in shards.items()
    }


def server_of(method: Method, hyper: object, **network: bool) -> ServerHalf:
    return with_public_set(method.Server(tiny(**network), hyper, 7))


def play(server: ServerHalf, clients: Mapping[str, ClientHalf], number: int) -> list[dict[str, Payload]]:
    """Play one round as the coordinator and the agents do; return the answers by phase and device."""
    server.begin(number, [member(name, c) for name, c in sorted(clients.items())])
    story, uploads = server.round(), []
    ask = next(story)
    while True:
        answers = {name: answer(client, ask, number) for name, client in sorted(clients.items())}
        uploads.append(answers)
        try:
            ask = story.send([Reply(n, len(clients[n].data.y), p) for n, p in answers.items()])
        except StopIteration:
            return uploads


def member(name: str, client: ClientHalf) -> Member:
    y = client.data.y
    return Member(name, len(y), tuple(y.bincount(minlength=CLASSES).tolist()), client.domain)


def answer(client: ClientHalf, ask: Ask, number: int) -> Payload:
    client.begin(number)
    client.receive(snapshot(ask.payload))
    payload = snapshot(client.run(Ask(ask.phase, snapshot(ask.payload))))
    assert ask.problem_with(payload) is None
    return payload


def same(a: Payload, b: Payload) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def floats(payload: Payload) -> dict[str, int]:
    """Return how many numbers a payload has, by kind."""
    sizes: dict[str, int] = {}
    for name, value in payload.items():
        kind = name.partition(".")[0]
        sizes[kind] = sizes.get(kind, 0) + value.numel()
    return sizes
