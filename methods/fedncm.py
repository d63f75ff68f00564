"""FedNCM (Legate et al., NeurIPS 2023): the nearest mean of frozen features, from one message of each device.

mu_ic = mean of phi(x) over the n_ic samples of class c on device i          (device)
mu_c  = sum_i n_ic mu_ic / sum_i n_ic                                         (server)
W_c   = mu_c / |mu_c|, score W_c . phi(x)

phi is the network as the run begins; nothing is trained. The length of phi(x) does not change which score is largest,
so the prediction is the nearest mean by cosine. With metric = "euclidean" it is the nearest mean itself, as the score
mu_c . phi(x) - |mu_c|^2 / 2. The authors' code computes the means centrally; here each device sends its own means.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from protofleet.methods.contract.base import Method, Payload, Reply
from protofleet.methods.contract.cost import Cost, Sizes, eight_bytes
from protofleet.methods.contract.wants import TensorSpec
from protofleet.methods.maths.heads import unit_rows
from protofleet.methods.maths.means import class_means
from protofleet.methods.nets.base import Net
from protofleet.methods.parts.class_sums import ClassSums, NoisySums, ReleasedSums
from protofleet.methods.parts.feature_means import dtype_of
from protofleet.methods.parts.local import demand_one_of
from protofleet.methods.parts.prototypes import HELD_ROWS, held_rows
from protofleet.methods.parts.rules import Linear
from protofleet.methods.parts.statistics import (
    StatisticsClient,
    StatisticsHyper,
    StatisticsServer,
    all_mean_rows,
    head_cost,
    head_rows,
    mean_rows,
    mean_wants,
)

Metric = Literal["cosine", "euclidean"]


@dataclass(frozen=True)
class Hyper(StatisticsHyper):
    metric: Metric = "cosine"
    """Nearness of a feature to a class mean, `cosine` or `euclidean` (the distance)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        demand_one_of("metric", self.metric, get_args(Metric))


class Server(StatisticsServer):
    hyper: Hyper

    def wants(self) -> Mapping[str, TensorSpec]:
        return mean_wants(self.model, self.hyper)

    def solve(self, replies: Sequence[Reply]) -> Payload:
        rows, labels, each = all_mean_rows(replies)
        means, counts = class_means(rows, labels, self.model.classes, each)
        head = unit_rows(means) if self.hyper.metric == "cosine" else means
        return head_rows(head, counts > 0, self.model)


class Client(StatisticsClient):
    hyper: Hyper

    def statistics(self, z: Tensor, y: Tensor) -> Payload:
        return mean_rows(z, y, self.model)

    def linear(self, rows: Tensor, known: Tensor) -> Linear:
        squares = rows.square().sum(dim=1)
        bias = -squares / 2 if self.hyper.metric == "euclidean" else torch.zeros_like(squares)
        return Linear(rows, bias, known, normalised=self.hyper.normalised)


def sums(hyper: Hyper, model: Net, clip: float) -> ReleasedSums:
    """Return the sums whose release with noise protects each sample; phi does not depend on the samples."""
    longest = min(clip, math.sqrt(model.embedding_size)) if hyper.normalised else clip
    dtype = dtype_of(model)

    def arrays(noisy: NoisySums, samples: int) -> dict[str, Tensor]:
        means, counts = noisy.means(hyper.least_samples, samples, longest)
        return held_rows(means.to(dtype), counts)

    return ReleasedSums(ClassSums(clip, model.classes, model.embedding_size, products=False), arrays)


def cost(sizes: Sizes) -> Cost:
    held = eight_bytes(sizes.held)
    up = {"prototypes": sizes.held * sizes.D, "labels": held, "counts": held}
    return Cost(up, last=head_cost(sizes))


METHOD = Method(
    "arXiv:2306.03937", Hyper, Server, Client, arrays=(*HELD_ROWS, "head"), cost=cost, sums=sums,
)  # fmt: skip
