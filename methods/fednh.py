"""FedNH (Dai et al., AAAI 2023): the rows of the head are unit prototypes, which only the server changes.

f(x) = s W unit(z),   |W_c| = 1; W is fixed on the device; the scale s and the layers below the head are trained
mu_c^i = unit(mean of unit(z) over the device's samples of c), after training, in evaluation mode
W_c <- unit(rho W_c + (1 - rho) unit(sum_i N_i^c mu_c^i / sum_i N_i^c));  other weights <- the plain mean over devices

unit(v) scales v to length 1. z is the embedding, and device i has N_i^c samples of class c. At the start, the rows of
W are orthogonal to each other if the number of classes is at most the length of z. If no device of a round holds a
class, the row of the class does not change. Each round multiplies the learning rate by `lr_decay`. Choices
where the text states nothing, or differs from the code:
  scale    1 at first, and trained; the authors' ResNets begin with 20. With fixed_scale, the scale is not trained
           and not sent (their option has 30).
  clip     10, as in their code.
  rows     in their code a device sends N_i^c mu_c^i and counts of all C classes. Here a device sends mu_c^i and
           N_i^c of the classes that it holds.
final_fit: after the last broadcast, every device fits the model to its own data once more, as in FedHP's table. The
learning rate is that of a further round. The fitted models are measured. final_fit is off by default.
Nothing is private: in each round a device starts from the arrays that the server sends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import torch
from torch import Tensor, nn

from protofleet.methods import fedavg
from protofleet.methods.contract.averages import Averaged
from protofleet.methods.contract.base import Ask, Method, Payload, Reply, Round, Samples, ServerHalf, seeded
from protofleet.methods.contract.cost import Cost, Sizes, eight_bytes, parameters
from protofleet.methods.contract.received import demand_arrays
from protofleet.methods.maths.geometry import unit
from protofleet.methods.maths.means import ClassMeans, class_means, merge_class_means
from protofleet.methods.nets.base import Net, initialised_from
from protofleet.methods.parts.averaging import plain_mean
from protofleet.methods.parts.hyperspheres import SLACK
from protofleet.methods.parts.local import embed, train
from protofleet.methods.parts.optimizers import SGD
from protofleet.methods.parts.prototypes import (
    HELD_ROWS,
    class_means_in,
    held_row_wants,
    margin_figures,
    table_specs,
)
from protofleet.methods.parts.shared import SharedPart
from protofleet.methods.parts.small_classes import CountsIfLimited, LeastSamplesHyper, sent_means
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import WEIGHTS, weight_wants
from protofleet.protocol.settings.bounds import LONGEST_NORM, PositiveShare, Share, Weight, Within


@dataclass(frozen=True)
class Hyper(LeastSamplesHyper):
    clip: Annotated[float, Within(0, LONGEST_NORM, above=True)] | None = 10.0
    rho: Share = 0.9
    """Part of a prototype that stays in each round; the rest moves to the mean of the devices."""
    scale: Weight = 1.0
    """Scale s of the head at the start; the authors' ResNets start with 20."""
    fixed_scale: bool = False
    """If true, the scale is not learned and not sent."""
    lr_decay: PositiveShare = 0.99
    """Factor on the learning rate after each round; 1 means that the rate stays."""
    final_fit: bool = False
    """If true, every device fits the model once more to its own data after the last broadcast, at the learning rate
    of a next round, and is measured with the result.
    """


class Head(nn.Module):
    prototypes: Tensor  # W [C, D]

    def __init__(self, prototypes: Tensor, hyper: Hyper) -> None:
        super().__init__()
        self.register_buffer("prototypes", prototypes)
        self.scale = nn.Parameter(prototypes.new_tensor(hyper.scale), requires_grad=not hyper.fixed_scale)

    def forward(self, z: Tensor) -> Tensor:
        return self.scale * unit(z) @ self.prototypes.T


class Shared(SharedPart):
    """The part of the model that all devices share and that is averaged: everything except the prototypes.

    The prototypes are sent as the array `prototypes`. The scale of the head is not sent if it is fixed.
    """

    head: Head
    hyper: Hyper

    def shared_keys(self) -> frozenset[str]:
        kept = {"head.prototypes", *(["head.scale"] if self.hyper.fixed_scale else [])}
        return frozenset(self.model.state_dict()) - kept

    def load(self, payload: Payload) -> None:
        self.load_shared(payload)
        demand_arrays(payload, table_specs(self.model, "prototypes"))
        self.head.prototypes.copy_(payload["prototypes"].detach())


class Server(Shared, CountsIfLimited, ServerHalf):
    def __init__(self, model: Net, hyper: Hyper, seed: int) -> None:
        super().__init__(model, hyper, seed)
        self.head = model.head = head_of(model, hyper, seed)

    def round(self) -> Round:
        wants = weight_wants(self.model, keys=self.shared_keys())
        rows = held_row_wants(self.model, 1 + SLACK)
        replies = yield Ask("train", self.payload(), {**wants, **rows})
        self.count_devices(replies)
        self.load_shared(plain_mean(replies, wants))
        self.head.prototypes.copy_(moved(self.head.prototypes, self.merged(replies), self.hyper.rho))

    def merged(self, replies: Sequence[Reply]) -> ClassMeans:
        ordered = sorted(replies, key=lambda reply: reply.device)
        return merge_class_means(class_means_in(reply.payload, self.model.classes) for reply in ordered)

    def payload(self) -> Payload:
        return {**self.shared(), "prototypes": self.head.prototypes}

    def state(self) -> Payload:
        return snapshot(self.payload())

    def restore(self, state: Payload) -> None:
        self.load(state)

    def monitor(self) -> Mapping[str, float]:
        return {**margin_figures(self.head.prototypes), **super().monitor()}


class Client(Shared, fedavg.Client):
    hyper: Hyper

    def __init__(self, model: Net, data: Samples, hyper: Hyper, seed: int, device: str) -> None:
        super().__init__(model, data, hyper, seed, device)
        self.head = model.head = head_of(model, hyper, seed)

    def receive(self, payload: Payload) -> None:
        self.load(payload)

    def run(self, ask: Ask) -> Payload:
        self.fit(ask.phase)
        means, counts = class_means(unit(embed(self.model, self.data.x)), self.data.y, self.model.classes)
        rows = sent_means(unit(means), counts, self.hyper.least_samples, self.number)
        return {**self.shared(), **rows}

    def fit(self, purpose: str) -> None:
        h = self.hyper
        rate = h.lr * h.lr_decay ** (self.number - 1)
        sgd = SGD(self.model.parameters(), rate, h.momentum, h.weight_decay)
        train(self.model, self.data, self.objective, h, self.generator(purpose), optimizers=[sgd])

    def after_last_round(self) -> None:
        if self.hyper.final_fit:
            self.fit("settle")


def head_of(model: Net, hyper: Hyper, seed: int) -> Head:
    """Return the head that replaces the head of the network; its first weights are the same on all machines."""
    like = next(model.parameters())
    with initialised_from(seeded(seed, "prototypes").initial_seed()):
        rows = nn.init.orthogonal_(torch.empty(model.classes, model.embedding_size))
    return Head(unit(rows.to(like.device, like.dtype)), hyper)


def moved(W: Tensor, merged: ClassMeans, rho: float) -> Tensor:
    """Return the rows [C, D], each moved towards the mean direction of its class.

    If no device holds a class, its row does not change.
    """
    means, counts = merged
    return torch.where(counts.unsqueeze(1) > 0, unit(rho * W + (1 - rho) * unit(means)), W)


def cost(sizes: Sizes, *, fixed_scale: bool = False) -> Cost:
    """Return the cost; the authors' code sends C D + C numbers up, for all classes."""
    held, scale = sizes.held, 0 if fixed_scale else 1
    weights = {"weights": sizes.weights - parameters(sizes.model.head) + scale}
    rows = {"prototypes": held * sizes.D, "labels": eight_bytes(held), "counts": eight_bytes(held)}
    return Cost(up={**weights, **rows}, down={**weights, "prototypes": sizes.C * sizes.D})


def variant(hyper: Hyper) -> Method:
    method = replace(METHOD, cost=partial(cost, fixed_scale=True)) if hyper.fixed_scale else METHOD
    return replace(method, reports="personal") if hyper.final_fit else method


METHOD = Method(
    "arXiv:2212.02758",
    Hyper,
    Server,
    Client,
    arrays=(*WEIGHTS, *HELD_ROWS),
    cost=cost,
    variant=variant,
    averaged={"train": Averaged(arrays=WEIGHTS, by="devices", rows="counts")},
)
