"""FedPFT (Beitollahi et al., 2024): a server trains a head on features drawn from the devices' Gaussian mixtures.

device i   for each class c, a mixture of k Gaussians, fitted to its n_ic features phi(x)
server     draws n_ic features from each mixture, and trains a linear head on all of them, by AdamW

phi is the network as the run begins; devices train nothing. With k = 1, a mixture is the mean and the covariance of
the class, in closed form. The server trains in the type of the network, and begins with zeros in each round, because
with the paper's small rate a few steps do not change random weights. Each draw has a generator that is named by the
device and the class; in Flower's code, all draws have one seed, so all classes get the same noise.

  covariance  "spherical" (one variance), as in Flower's code, "diag" or "full". A full covariance is sent as a
              triangle U, where U'U is the covariance. Rounding to float32 keeps U'U positive.
  parts       k. A class with fewer samples has as many parts as samples; Flower's code drops such a class.

Named codecs do not round mixtures, because float16 has no small variances. A mixture shows more than FedNCM's class
mean, and with few samples in a part it shows these samples. Its samples are drawn, but they are not private.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, get_args

import torch
from torch import Tensor

from protofleet.methods.contract.base import Method, Payload, Reply, seeded
from protofleet.methods.contract.cost import Cost, Sizes, eight_bytes
from protofleet.methods.contract.wants import TensorSpec
from protofleet.methods.maths.gaussian_mixtures import (
    Covariance,
    Mixture,
    drawn,
    fitted,
    mixture_of,
    part_size,
    problem_with_mixture,
    row_of,
)
from protofleet.methods.parts.feature_means import dtype_of, linear_rule, spec
from protofleet.methods.parts.last_rows import Rows
from protofleet.methods.parts.local import LocalHyper, demand_one_of
from protofleet.methods.parts.prototypes import held_row_wants
from protofleet.methods.parts.statistics import StatisticsClient, StatisticsHyper, StatisticsServer
from protofleet.methods.parts.trained_heads import trained_head
from protofleet.protocol.settings.bounds import LARGEST_COUNT, Batch, Epochs, Rate, Within


@dataclass(frozen=True)
class Hyper(StatisticsHyper):
    parts: Annotated[int, Within(1, 1000)] = 1
    """Number of Gaussians (k) in the mixture of a class."""
    covariance: Covariance = "spherical"
    """Covariance of a Gaussian, `spherical` (one variance), `diag` (a variance for each number) or `full`."""
    server_epochs: Epochs = 50
    """Number of passes of the server over the drawn features."""
    server_batch: Batch = 32
    """Number of drawn features in a batch."""
    server_lr: Rate = 1e-4
    """Learning rate of AdamW on the server."""
    most_drawn: Annotated[int, Within(1, 100 * LARGEST_COUNT)] = 100_000
    """Largest number of features that are drawn; if there are more samples, all classes get the same share of it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        demand_one_of("covariance", self.covariance, get_args(Covariance))

    def row_size(self, size: int) -> int:
        """Return how many numbers the mixture of a class has, for features of this size."""
        return self.parts * part_size(self.covariance, size)


class Server(StatisticsServer):
    hyper: Hyper

    def wants(self) -> Mapping[str, TensorSpec]:
        found = held_row_wants(self.model)
        mixtures = spec(self.model, "held", self.hyper.row_size(self.model.embedding_size))
        return {"mixtures": mixtures, "labels": found["labels"], "counts": found["counts"]}

    def refusal(self, reply: Reply) -> str:
        most = float(self.model.embedding_size) if self.hyper.normalised else math.inf
        rows = reply.payload["mixtures"].double()
        reasons = (problem_with_mixture(self.mixture(row), most) for row in rows if row.any())
        return next((f"mixtures has {reason}" for reason in reasons if reason), "")

    def mixture(self, row: Tensor) -> Mixture:
        return mixture_of(row, self.hyper.parts, self.model.embedding_size, self.hyper.covariance)

    def solve(self, replies: Sequence[Reply]) -> Payload:
        rows, hyper = self.drawn(replies), self.hyper
        if not len(rows.y):
            return {}
        training = LocalHyper(hyper.server_epochs, hyper.server_batch, hyper.server_lr)
        order = seeded(self.seed, "server", "order")
        return {"head": trained_head(rows, self.model.classes, training, order)}

    def drawn(self, replies: Sequence[Reply]) -> Rows:
        """Return the drawn features of all devices; a row of zeros, with which arrays are counted, gives zeros."""
        total = sum(int(reply.payload["counts"].sum()) for reply in replies)
        share = min(1.0, self.hyper.most_drawn / max(1, total))
        none = next(self.model.parameters()).new_zeros(0, self.model.embedding_size)
        x, y = [none], [none.new_zeros(0, dtype=torch.int64)]
        for reply in replies:
            arrays = [reply.payload[name] for name in ("mixtures", "labels", "counts")]
            for row, label, count in zip(*arrays, strict=True):
                generator = seeded(self.seed, "server", reply.device, int(label))
                number = max(1, round(int(count) * share))
                zeros = row.new_zeros(number, none.shape[1])
                x.append(drawn(self.mixture(row), number, generator) if row.any() else zeros)
                y.append(label.expand(number))
        return Rows(torch.cat(x), torch.cat(y))


class Client(StatisticsClient):
    hyper: Hyper

    def statistics(self, z: Tensor, y: Tensor) -> Payload:
        counts, hyper = y.bincount(minlength=self.model.classes), self.hyper
        labels, rows = counts.nonzero().squeeze(1), [z.new_zeros(0, hyper.row_size(z.shape[1]))]
        for label in labels.tolist():
            generator = seeded(self.seed, self.device, "mixture", label)
            found = fitted(z[y == label], hyper.parts, hyper.covariance, generator)
            rows.append(row_of(found, hyper.parts).unsqueeze(0))
        mixtures = torch.cat(rows).to(dtype_of(self.model))
        return {"mixtures": mixtures, "labels": labels, "counts": counts[labels]}

    def receive(self, payload: Payload) -> None:
        if payload:
            self.head = linear_rule(payload, self.model, bias=True, normalised=self.hyper.normalised)


def cost(sizes: Sizes, hyper: Hyper | None = None) -> Cost:
    """Return the cost of a round; the head goes down only in the last evaluation."""
    held = eight_bytes(sizes.held)
    up = {"mixtures": sizes.held * (hyper or Hyper()).row_size(sizes.D), "labels": held, "counts": held}
    return Cost(up, last={"head": sizes.C * (sizes.D + 1)})


def variant(hyper: Hyper) -> Method:
    return replace(METHOD, cost=partial(cost, hyper=hyper))


METHOD = Method(
    "arXiv:2402.01862", Hyper, Server, Client,
    arrays=("mixtures", "labels", "counts", "head"), cost=cost, variant=variant, calmer=("server_lr",),
)  # fmt: skip
