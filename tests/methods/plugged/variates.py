"""Variates (after Karimireddy et al., ICML 2020): a plug-in in the form of SCAFFOLD as the paper has it.

y_i <- y_i - lr (g_i - c_i + c)      c_i' = c_i - c + (x - y_i) / (K lr)      c <- c + 1/N sum_S (c_i' - c_i)
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from protofleet import (
    Ask,
    Cost,
    LocalHyper,
    Method,
    Net,
    Payload,
    Round,
    Samples,
    Sizes,
    TensorSpec,
    load_weights,
    weight_wants,
    weighted_mean,
)
from protofleet.methods import fedavg

KIND = "variates"


def variates_like(model: Net) -> dict[str, Tensor]:
    return {f"{KIND}.{name}": torch.zeros_like(w.detach()) for name, w in model.named_parameters()}


class Server(fedavg.Server):
    def __init__(self, model: Net, hyper: Any, seed: int) -> None:
        super().__init__(model, hyper, seed)
        self.c = variates_like(model)

    def round(self) -> Round:
        weights = weight_wants(self.model)
        changes = {name: TensorSpec(tuple(c.shape)) for name, c in self.c.items()}
        replies = yield Ask("train", {**self.payload(), **self.c}, {**weights, **changes})
        load_weights(self.model, weighted_mean(replies, weights))
        for name, c in self.c.items():
            total = sum(reply.payload[name] for reply in sorted(replies, key=lambda reply: reply.device))
            self.c[name] = c + total / self.fleet

    def state(self) -> Payload:
        return {**super().state(), **{name: c.clone() for name, c in self.c.items()}}

    def restore(self, state: Payload) -> None:
        load_weights(self.model, state)
        self.c = {name: state[name].clone() for name in self.c}


class Client(fedavg.Client):
    def __init__(self, model: Net, data: Samples, hyper: Any, seed: int, device: str) -> None:
        super().__init__(model, data, hyper, seed, device)
        self.own, self.c = variates_like(model), variates_like(model)

    def receive(self, payload: Payload) -> None:
        super().receive(payload)
        self.c = {name: payload[name].detach() if name in payload else c for name, c in self.c.items()}

    def objective(self, x: Tensor, y: Tensor) -> Tensor:
        parts = self.model.named_parameters()
        pull = [((self.c[f"{KIND}.{n}"] - self.own[f"{KIND}.{n}"]) * w).sum() for n, w in parts]
        loss: Tensor = super().objective(x, y) + torch.stack(pull).sum()
        return loss

    def run(self, ask: Ask) -> Payload:
        before = {name: w.detach().clone() for name, w in self.model.named_parameters()}
        sent = super().run(ask)
        steps = max(1, self.hyper.epochs * math.ceil(len(self.data.y) / self.hyper.batch))
        changes = {}
        for name, w in self.model.named_parameters():
            key = f"{KIND}.{name}"
            changes[key] = (before[name] - w.detach()) / (steps * self.hyper.lr) - self.c[key]
            self.own[key] = self.own[key] + changes[key]
        return {**sent, **changes}

    def state(self) -> Payload:
        return {**super().state(), **{name: c.clone() for name, c in self.own.items()}}

    def restore(self, state: Payload) -> None:
        super().restore(state)
        self.own = {name: state[name].clone() for name in self.own}


def cost(sizes: Sizes) -> Cost:
    both = {"weights": sizes.weights, KIND: int(sizes.weights)}  # a variate for each parameter
    return Cost(up=both, down=both)


METHOD = Method(
    "arXiv:1910.06378",
    LocalHyper,
    Server,
    Client,
    private="its control variate",
    arrays=("weights", KIND),
    cost=cost,
)
