"""FedDAP (Le et al., CVPR 2026): each class has a prototype for each domain, fused from similar devices.

Device i, domain s: P_i^c is the mean of the features of class c that it saw in the last local epoch
Server            : w <- sum_i (N_i / N) w_i
                    G^{c,s} = sum_i a_i P_i^c over the devices of s     a = softmax_i( sum_j cos(P_i^c, P_j^c) / T )
Device, next round: L = L_CE + lambda1 mean_b( 1 - cos(z, G^{y,s}) ) + lambda2 mean_b( L_cross )
L_cross = -log( sum_{g in G^y} e^(cos(z, g) / tau) / sum_{all g} e^(cos(z, g) / tau) )     without the rows of s

If each domain has one device, the fusion does nothing: each row is the prototype that its device sent. Then every
device receives the class means of each other device.

A device states its domain (`data.domain`) when it joins. Each domain belongs to its first device, or to the devices
that `limits.domains` lists, and any other device that states it is refused. Choices where the source states nothing:
  positives  Their exponentials are summed inside the logarithm, as in FPL.
  means      Both means are over the samples whose class has the rows that the term needs.
  noise      The authors' code adds noise to prototypes, which it does not define. We add none.
If no device of a domain holds a class in a round, the row stays as it is. In round 1 the loss is L_CE alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from protofleet.methods import fedavg
from protofleet.methods.contract.base import Ask, Method, Payload, Reply, Round, Samples
from protofleet.methods.contract.cost import Cost, Sizes, eight_bytes
from protofleet.methods.maths.contrast import cosines, own_mean, weighted_contrast
from protofleet.methods.maths.fusion import similarity_mean
from protofleet.methods.nets.base import Net
from protofleet.methods.parts.averaging import weighted_mean
from protofleet.methods.parts.domains import (
    DOMAIN_ROWS,
    DomainRows,
    Place,
    domain_id,
    rows_by_place,
    rows_received,
    rows_to_send,
    table_of_rows,
)
from protofleet.methods.parts.local import LocalHyper, demand, train
from protofleet.methods.parts.prototypes import (
    LARGEST_NUMBER,
    SeenFeatures,
    class_row_wants,
    class_rows,
    table_of,
)
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import WEIGHTS, load_weights, weight_wants, weights_of
from protofleet.protocol.settings.bounds import Batch, Epochs, Temperature, Weight


@dataclass(frozen=True)
class Hyper(LocalHyper):
    epochs: Epochs = 10
    batch: Batch = 32
    lambda1: Weight = 1.0
    """Weight of the distance to the prototype of the own class and domain; 0 means off."""
    lambda2: Weight = 1.0
    """Weight of the contrast with the prototypes of the other domains; 0 means off."""
    tau: Temperature = 0.02
    """Temperature of the contrast."""
    fusion_tau: Temperature = 0.001
    """Temperature of the fusion (T in the formulas)."""
    domains: tuple[str, ...] = ()
    """Names of the run's domains; a device of another domain is refused; empty means that devices may state any
    domain.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        twice = [name for name in self.domains if self.domains.count(name) > 1]
        demand("domains", self.domains, not twice and all(self.domains), "a list of different names")


class Server(fedavg.Server):
    hyper: Hyper

    def __init__(self, model: Net, hyper: Hyper, seed: int) -> None:
        super().__init__(model, hyper, seed)
        self.table: dict[Place, Tensor] = {}

    def round(self) -> Round:
        weights = weight_wants(self.model)
        rows = class_row_wants(self.model, LARGEST_NUMBER, row_per_example=True)
        replies = yield Ask("train", self.payload(), {**weights, **rows})
        load_weights(self.model, weighted_mean(replies, weights))
        self.table |= self.fused(replies)

    def fused(self, replies: Sequence[Reply]) -> Mapping[Place, Tensor]:
        sent = rows_by_place(replies, self.cohort, self.model)
        return {place: similarity_mean(rows, self.hyper.fusion_tau) for place, rows in sent.items()}

    def payload(self) -> Payload:
        return {**super().payload(), **rows_to_send(self.table)}

    def state(self) -> Payload:
        return snapshot(self.payload())

    def restore(self, state: Payload) -> None:
        super().restore(state)
        self.table = table_of_rows(rows_received(state, self.model))


class Client(fedavg.Client):
    hyper: Hyper

    def __init__(self, model: Net, data: Samples, hyper: Hyper, seed: int, device: str) -> None:
        super().__init__(model, data, hyper, seed, device)
        self.others: DomainRows | None = None  # The rows of all other domains.
        self.own, self.known = table_of({}, model)  # The rows of this device's domain.
        self.seen = SeenFeatures(model)

    def receive(self, payload: Payload) -> None:
        super().receive(payload)
        found = rows_received(payload, self.model)
        self.others, (self.own, self.known) = None, table_of({}, self.model)
        if found is None:
            return
        mine = found.domains == domain_id(self.domain or self.device)
        own = {"prototypes": found.rows[mine], "labels": found.labels[mine]}
        self.own, self.known = table_of(own, self.model)
        self.others = DomainRows(found.rows[~mine], found.labels[~mine], found.domains[~mine])

    def run(self, ask: Ask) -> Payload:
        generator = self.generator(ask.phase)
        train(self.model, self.data, self.objective, self.hyper, generator, before_epoch=self.seen.clear)
        means = self.seen.means().to(next(self.model.parameters()).dtype)
        return {**weights_of(self.model), **class_rows(means, self.seen.counts > 0)}

    def objective(self, x: Tensor, y: Tensor) -> Tensor:
        z = self.model.embed(x)
        self.seen.add(z.detach(), y)
        return F.cross_entropy(self.model.head(z), y) + self.alignment(z, y)

    def alignment(self, z: Tensor, y: Tensor) -> Tensor:
        held, hyper, total = self.known[y], self.hyper, z.new_zeros(())
        if held.any():
            near = F.cosine_similarity(z[held], self.own[y[held]])
            total = total + hyper.lambda1 * (1 - near).mean()
        if self.others is not None and len(self.others.rows):
            near = cosines(z, self.others.rows)
            contrast = weighted_contrast(near, y, self.others.labels, torch.ones_like(near[:1]), hyper.tau)
            total = total + hyper.lambda2 * own_mean(contrast)
        return total


def cost(sizes: Sizes) -> Cost:
    """Return the cost: a row down for each class and each domain that has held it."""
    G, held = sizes.global_prototypes, sizes.held
    up = {"weights": sizes.weights, "prototypes": held * sizes.D, "labels": eight_bytes(held)}
    ids = {"labels": eight_bytes(G), "domains": eight_bytes(G)}
    return Cost(up, {"weights": sizes.weights, "prototypes": G * sizes.D, **ids})


def variant(hyper: Hyper) -> Method:
    return replace(METHOD, domains=hyper.domains)


METHOD = Method(
    "arXiv:2604.06795", Hyper, Server, Client,
    arrays=(*WEIGHTS, *DOMAIN_ROWS), cost=cost, variant=variant, domains=(),
)  # fmt: skip
