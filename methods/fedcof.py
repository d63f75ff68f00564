"""FedCOF (Goswami et al., NeurIPS 2025): a linear head from class means alone, whose scatter shows the covariance.

mu_ic   = mean of phi(x) over the n_ic samples of class c on device i                      (device)
Sigma_c = 1 / (K_c - 1) sum_i n_ic (mu_ic - mu_c)(mu_ic - mu_c)' + gamma I                 (server)
G       = sum_c (n_c - 1) Sigma_c + n mu mu'
W       = G^-1 B, column c of B is n_c mu_c; each class's w_c gets length 1; score w_c . phi(x)

phi is the network as the run begins, K_c the number of means of class c. A class with one mean has only gamma I. The
scatter of the class means about the mean mu of all samples is left out, as in the authors' code; scatter = "total"
adds it. Departures from the code: gamma is by default relative, a multiple of trace(G) / (D (n - C)) with the G that
has no gamma, because the best absolute value depends on the scale of the features; grid 0.01 to 10. A class that
nobody holds, at which the code divides 0 by 0, is never predicted. A pseudo-inverse is used only if G is singular.

What it assumes: samples of a class are drawn alike on all devices. If devices shift a class, the shift counts as
many times as a device has samples of it. Then W avoids the directions of the shift, but Sigma_c is no covariance.
The rank of the scatter is at most sum_c (K_c - 1). means_per_class = J raises it: a device sends means of J random
parts of a class, for J times the bytes, so that a run with few devices shows more directions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, get_args

import torch
from torch import Tensor

from protofleet.methods import fedncm
from protofleet.methods.contract.base import Method, Payload, Reply, seeded
from protofleet.methods.contract.cost import Cost, Sizes, eight_bytes
from protofleet.methods.contract.wants import TensorSpec
from protofleet.methods.maths.heads import Penalty, penalised, solved, unit_rows
from protofleet.methods.maths.means import class_means
from protofleet.methods.maths.second_moments import moment_from_means
from protofleet.methods.parts.local import demand_one_of
from protofleet.methods.parts.prototypes import HELD_ROWS
from protofleet.methods.parts.statistics import (
    StatisticsClient,
    StatisticsHyper,
    StatisticsServer,
    all_mean_rows,
    head_rows,
    mean_wants,
)
from protofleet.protocol.settings.bounds import Weight, Within

Scatter = Literal["within", "total"]


@dataclass(frozen=True)
class Hyper(StatisticsHyper):
    gamma: Weight = 1.0
    """Weight of the identity in each class's covariance; good values are 0.01 to 10, and 0 means none."""
    penalty: Penalty = "relative"
    """Unit of `gamma`, `relative` (to the mean variance of the features) or `absolute` (as in the paper)."""
    scatter: Scatter = "within"
    """Scatter in the matrix, `within` the classes, or `total`, which adds the scatter of the class means."""
    means_per_class: Annotated[int, Within(1, 1000)] = 1
    """Largest number of means that a device sends of a class; each is the mean of a random part of its samples."""

    def __post_init__(self) -> None:
        super().__post_init__()
        demand_one_of("penalty", self.penalty, get_args(Penalty))
        demand_one_of("scatter", self.scatter, get_args(Scatter))


class Server(StatisticsServer):
    hyper: Hyper

    def wants(self) -> Mapping[str, TensorSpec]:
        return mean_wants(self.model, self.hyper, self.hyper.means_per_class)

    def solve(self, replies: Sequence[Reply]) -> Payload:
        rows, labels, each = all_mean_rows(replies)
        if not len(rows):
            return {}
        hyper, classes = self.hyper, self.model.classes
        means, counts = class_means(rows, labels, classes, each)
        moment = moment_from_means(rows, labels, each, classes, between=hyper.scatter == "total")
        freedom = float(counts.sum() - (counts > 0).sum())
        G = penalised(moment, hyper.gamma, hyper.penalty, freedom)
        W = solved(G, (means * counts.unsqueeze(1)).T).T
        return head_rows(unit_rows(W), counts > 0, self.model)


class Client(StatisticsClient):
    hyper: Hyper

    def statistics(self, z: Tensor, y: Tensor) -> Payload:
        most, classes = self.hyper.means_per_class, self.model.classes
        means, counts = class_means(z, y * most + self.parts(y), classes * most)
        held, dtype = counts > 0, next(self.model.parameters()).dtype
        labels = held.nonzero().squeeze(1) // most
        return {"prototypes": means[held].to(dtype), "labels": labels, "counts": counts[held]}

    def parts(self, y: Tensor) -> Tensor:
        """Return the number of each sample's part [N]; a part has at least `least_samples` samples."""
        # The parts are the same in every round, so an answer that is computed again has the same bits.
        generator = seeded(self.seed, self.device, "parts")
        found = torch.zeros_like(y)
        for label in range(self.model.classes):
            own = (y == label).nonzero().squeeze(1)
            parts = max(1, min(self.hyper.means_per_class, len(own) // self.hyper.least_samples))
            order = torch.randperm(len(own), generator=generator).to(y.device)
            found[own] = order % parts
        return found


def cost_of_parts(sizes: Sizes) -> Cost:
    """Return the cost if a device sends several means of a class."""
    each = eight_bytes(sizes.local_prototypes)
    up = {"prototypes": sizes.local_prototypes * sizes.D, "labels": each, "counts": each}
    return replace(fedncm.cost(sizes), up=up)


def variant(hyper: Hyper) -> Method:
    return METHOD if hyper.means_per_class == 1 else replace(METHOD, cost=cost_of_parts)


METHOD = Method(
    "arXiv:2412.14326", Hyper, Server, Client, arrays=(*HELD_ROWS, "head"), cost=fedncm.cost, variant=variant
)  # fmt: skip
