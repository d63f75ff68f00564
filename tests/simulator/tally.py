"""Not a paper: a method in which every mistake of bookkeeping changes a bit, for next to no computing.

Two phases. "train": weights up, of the device's own data and of all that it has done so far. "mix": rows up, of
another number for each device. The server adds in an order that floating point remembers; the device's state is
folded with every question it works on, so that working on one twice, or on none, shows in the end.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from protofleet.methods.contract.base import Ask, ClientHalf, Method, ServerHalf
from protofleet.methods.contract.wants import TensorSpec

WIDTH = 4


@dataclass(frozen=True)
class Hyper:
    numbers: int = 64
    rows: int = 6  # at most, of one device in phase "mix"


class Server(ServerHalf):
    def __init__(self, model, hyper, seed):
        super().__init__(model, hyper, seed)
        self.weights = torch.linspace(-1, 1, hyper.numbers)
        self.anchors = torch.zeros(WIDTH)

    def round(self):
        N = self.hyper.numbers
        replies = yield Ask("train", self.payload(), {"weights.w": TensorSpec((N,))})
        for reply in replies:
            self.weights = torch.sin(self.weights * 0.9 + reply.payload["weights.w"] * reply.examples / 7)
        rows = {"features": TensorSpec(("n", WIDTH), most=self.hyper.rows), "weights.w": TensorSpec((N,))}
        replies = yield Ask("mix", {"anchors": self.anchors, **self.payload()}, rows)
        for reply in replies:
            self.anchors = torch.cos(self.anchors * 1.1 + reply.payload["features"].sum(0))
            self.weights = torch.sin(self.weights + reply.payload["weights.w"])
        self.weights = self.weights + 0.01 * torch.randn(N, generator=self.generator("noise"))

    def payload(self):
        return {"weights.w": self.weights}

    def state(self):
        return {"weights.w": self.weights, "anchors": self.anchors}

    def restore(self, state):
        self.weights, self.anchors = state["weights.w"].clone(), state["anchors"].clone()


class Client(ClientHalf):
    def __init__(self, model, data, hyper, seed, device):
        super().__init__(model, data, hyper, seed, device)
        self.own = torch.zeros(hyper.numbers)
        self.received = torch.zeros(hyper.numbers)

    def receive(self, payload):
        self.received = payload["weights.w"]

    def run(self, ask):
        noise = torch.randn(self.hyper.numbers, generator=self.generator(ask.phase))
        self.own = torch.sin(self.own * 1.3 + self.received + noise)
        if ask.phase == "train":
            return {"weights.w": self.own}
        rows = 1 + int(torch.randint(self.hyper.rows, (1,), generator=self.generator("rows")))
        features = torch.randn(rows, WIDTH, generator=self.generator("features")) + ask.payload["anchors"]
        return {"features": features, "weights.w": self.own * 0.5}

    def settle(self):
        self.own = torch.sin(self.own + 1)

    def predict(self, x):
        return self.received[:2].expand(len(x), 2)

    def state(self):
        return {"weights.w": self.own}

    def restore(self, state):
        self.own = state["weights.w"].clone()


METHOD = Method("a tally of who was asked what", Hyper, Server, Client)
