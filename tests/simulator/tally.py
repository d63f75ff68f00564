"""A cheap test method in which every bookkeeping mistake changes a bit.

It has two phases. "train": weights go up; they depend on the device's data and on all that the device has
done so far. "mix": rows go up; their number differs for each device. The server adds in an order that
floating point remembers, and overwrites its weights in place, as a model does. Each question that a device
works on changes its state. So the end shows if it worked on one twice, or on none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from protofleet.methods.contract.averages import Averaged
from protofleet.methods.contract.base import Ask, ClientHalf, Method, ServerHalf
from protofleet.methods.contract.wants import TensorSpec

WIDTH = 4


@dataclass(frozen=True)
class Hyper:
    numbers: int = 64
    rows: int = 6  # The most rows of one device in phase "mix".
    phases: int = 2  # With 1 there is no phase "mix", so rounds may be buffered.
    axes: int = 1  # The axes of each tensor that travels; they do not change its number of values.

    @property
    def weights(self):
        return folded(self.numbers, self.axes)

    @property
    def features(self):
        return folded(WIDTH, self.axes)


def folded(numbers, axes):
    """Return a shape for these numbers, for example 12 as (12,), (2, 6) or (2, 2, 3)."""
    return (*(axes - 1) * (2,), numbers // 2 ** (axes - 1))


class Server(ServerHalf):
    def __init__(self, model, hyper, seed):
        super().__init__(model, hyper, seed)
        self.weights = torch.linspace(-1, 1, hyper.numbers).reshape(hyper.weights)
        self.anchors = torch.zeros(hyper.features)

    def round(self):
        W = self.hyper.weights
        replies = yield Ask("train", self.payload(), {"weights.w": TensorSpec(W)})
        for reply in replies:
            received = reply.payload["weights.w"] * reply.examples / 7
            self.weights.copy_(torch.sin(self.weights * 0.9 + received * reply.weight))
        if self.hyper.phases > 1:
            yield from self.mix()
        self.weights = self.weights + 0.01 * torch.randn(W, generator=self.generator("noise"))

    def mix(self):
        W, F = self.hyper.weights, self.hyper.features
        rows = {"features": TensorSpec(("n", *F), most=self.hyper.rows), "weights.w": TensorSpec(W)}
        replies = yield Ask("mix", {"anchors": self.anchors, **self.payload()}, rows)
        for reply in replies:
            self.anchors = torch.cos(self.anchors * 1.1 + reply.payload["features"].sum(0))
            self.weights.copy_(torch.sin(self.weights + reply.payload["weights.w"]))

    def payload(self):
        return {"weights.w": self.weights}

    def state(self):
        return {"weights.w": self.weights, "anchors": self.anchors}

    def restore(self, state):
        self.weights, self.anchors = state["weights.w"].clone(), state["anchors"].clone()


class Client(ClientHalf):
    def __init__(self, model, data, hyper, seed, device):
        super().__init__(model, data, hyper, seed, device)
        self.own = torch.zeros(hyper.weights)
        self.received = torch.zeros(hyper.weights)

    def receive(self, payload):
        self.received = payload["weights.w"]

    def run(self, ask):
        noise = torch.randn(self.hyper.weights, generator=self.generator(ask.phase))
        self.own = torch.sin(self.own * 1.3 + self.received + noise)
        if ask.phase == "train":
            return {"weights.w": self.own}
        rows = 1 + int(torch.randint(self.hyper.rows, (1,), generator=self.generator("rows")))
        drawn = torch.randn(rows, *self.hyper.features, generator=self.generator("features"))
        features = drawn + ask.payload["anchors"]
        return {"features": features, "weights.w": self.own * 0.5}

    def settle(self):
        self.own = torch.sin(self.own + 1)

    def predict(self, x):
        return self.received.flatten()[:2].expand(len(x), 2)

    def state(self):
        return {"weights.w": self.own}

    def restore(self, state):
        self.own = state["weights.w"].clone()


def variant(hyper):
    if hyper.phases > 1:
        return METHOD
    return replace(METHOD, buffered=True, averaged={"train": Averaged(("weights",))})


METHOD = Method("a tally of who was asked what", Hyper, Server, Client, variant=variant)
