"""FedTGP (Zhang et al., AAAI 2024): FedProto with prototypes that the server trains.

t_c = F(e_c)                        e_c is trained for each class, F has two linear layers (eq. 5)
m = min(M, margin_limit)            M: a distance between the devices' mean prototypes Q_c (eq. 8)
l = -log softmax_c(-(|p - t_c| + m [c = y]))        over the pairs (p, y) that devices sent (eq. 7)
Client: CE + lam MSE(z, t_y), as in FedProto

Differences between text and code:
  M           margin = "nearest" is from both codes of the authors. M is the largest distance of a Q_c to its nearest
              Q. "farthest" is from the text. M is the largest distance of two Q. With one class, m is margin_limit.
  classes     classes that no device has ever held are not sent. The authors' code sends all classes, so devices can
              predict a class that no device holds.
The rows e_c and the layers of F are the state of the server. The optimizer is new in each round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protofleet.methods import fedproto
from protofleet.methods.contract.base import Ask, Method, Payload, Reply, Round, ServerHalf
from protofleet.methods.contract.liveness import report_progress
from protofleet.methods.maths.geometry import distances, margins
from protofleet.methods.maths.means import class_means
from protofleet.methods.nets.base import Net, initialised_from
from protofleet.methods.parts.local import demand_one_of
from protofleet.methods.parts.optimizers import SGD
from protofleet.methods.parts.prototypes import (
    HELD_ROWS,
    class_means_in,
    class_rows,
    held_row_wants,
    known_rows,
)
from protofleet.methods.parts.small_classes import CountsIfLimited, LeastSamplesHyper
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import load_weights, torch_device_of, weights_of
from protofleet.protocol.settings.bounds import Batch, Epochs, Rate, Weight

Margin = Literal["nearest", "farthest"]


@dataclass(frozen=True)
class Hyper(LeastSamplesHyper):
    lam: Weight = 10.0
    """Weight (lambda) of the distance to the prototypes; 0 means off."""
    inference: fedproto.Inference = "prototype"
    """Prediction, by the nearest global `prototype` or by the device's own `classifier`."""
    proto_source: fedproto.Source = "eval"
    """Source of a device's prototypes, `eval` (a pass after training) or `training` (the features seen in the
    last local epoch).
    """
    margin: Margin = "nearest"
    """Margin between prototypes, the largest distance of a prototype to the `nearest` other one (the authors' code)
    or to the `farthest` one (the text).
    """
    margin_limit: Weight = 100.0
    """Upper bound of the margin."""
    server_epochs: Epochs = 100
    """Number of passes of the server over the prototypes of a round."""
    server_lr: Rate = 0.01
    """Learning rate on the server."""
    server_batch: Batch = 10
    """Number of prototypes in a batch on the server."""

    def __post_init__(self) -> None:
        super().__post_init__()
        demand_one_of("margin", self.margin, get_args(Margin))
        demand_one_of("inference", self.inference, get_args(fedproto.Inference))
        demand_one_of("proto_source", self.proto_source, get_args(fedproto.Source))


class Trainable(nn.Module):
    """The network that makes the prototypes t [C, D]."""

    def __init__(self, classes: int, size: int) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.randn(classes, size))
        self.layers = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, size))

    def forward(self) -> Tensor:
        made: Tensor = self.layers(self.rows)
        return made


class Server(CountsIfLimited, ServerHalf):
    hyper: Hyper

    def __init__(self, model: Net, hyper: Hyper, seed: int) -> None:
        super().__init__(model, hyper, seed)
        like = next(model.parameters())
        with initialised_from(seed):
            self.trainable = Trainable(model.classes, model.embedding_size)
        self.trainable.to(like.device, like.dtype)
        self.known = torch.zeros(model.classes, dtype=torch.bool, device=like.device)

    def round(self) -> Round:
        replies = yield Ask("train", self.payload(), held_row_wants(self.model))
        self.count_devices(replies)
        rows, labels = pairs(replies, self.model.classes)
        if len(labels):
            self.learn(rows, labels)
            self.known[labels] = True

    def learn(self, rows: Tensor, labels: Tensor) -> None:
        hyper, generator = self.hyper, self.generator("train")
        margin = margin_between(means_of(rows, labels, self.model.classes), hyper)
        sgd = SGD(self.trainable.parameters(), hyper.server_lr)
        for _ in range(hyper.server_epochs):
            order = torch.randperm(len(labels), generator=generator)
            for batch in torch.split(order, hyper.server_batch):
                sgd.zero_grad()
                torch.autograd.backward(contrast(rows[batch], labels[batch], self.trainable(), margin))
                sgd.step()
                report_progress()

    def payload(self) -> Payload:
        with torch.no_grad():
            return known_rows(self.trainable(), self.known)

    def state(self) -> Payload:
        return snapshot({**weights_of(self.trainable, "trainable"), "known": self.known})

    def restore(self, state: Payload) -> None:
        load_weights(self.trainable, state, "trainable")
        self.known = state["known"].to(torch_device_of(self.model))


class Client(fedproto.Client):
    hyper: Hyper  # type: ignore[assignment]

    def run(self, ask: Ask) -> Payload:
        self.fit(ask.phase)
        return self.sent_prototypes()

    def after_last_round(self) -> None:
        """Do nothing, because this method does not have FedProto's setting `final_fit`."""


def contrast(p: Tensor, y: Tensor, t: Tensor, margin: float) -> Tensor:
    """Return l, the mean over the pairs p [n, D], y [n] with the prototypes t [C, D]."""
    far = distances(p, t)
    own = F.one_hot(y, len(t)).to(far.dtype)
    return F.cross_entropy(-(far + margin * own), y)


def pairs(replies: Sequence[Reply], classes: int) -> tuple[Tensor, Tensor]:
    """Return all rows [n, D] and labels [n] of the devices, sorted by device and then by class.

    A device has at most one row for each class.
    """
    ordered = sorted(replies, key=lambda reply: reply.device)
    tables = [class_means_in(reply.payload, classes) for reply in ordered]
    found = [class_rows(means, counts > 0) for means, counts in tables]
    return torch.cat([p["prototypes"] for p in found]), torch.cat([p["labels"] for p in found])


def means_of(rows: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return the mean prototypes Q [J, D] of the classes that are present; each device's row counts once."""
    means, counts = class_means(rows, labels, classes)
    return means[counts > 0]


def nearest_others(Q: Tensor) -> float:
    return float(margins(Q).max()) if len(Q) > 1 else torch.inf


def farthest_others(Q: Tensor) -> float:
    return float(distances(Q, Q).max()) if len(Q) > 1 else torch.inf


SPREAD: Mapping[str, Callable[[Tensor], float]] = {"nearest": nearest_others, "farthest": farthest_others}


def margin_between(Q: Tensor, hyper: Hyper) -> float:
    """Return m, the margin of eq. 7."""
    return min(SPREAD[hyper.margin](Q), hyper.margin_limit)


METHOD = Method(
    "arXiv:2401.03230", Hyper, Server, Client,
    reports="personal", alike="embedding", other_rules=("prototype", "classifier"),
    private="the model", arrays=HELD_ROWS, cost=fedproto.cost,
)  # fmt: skip
