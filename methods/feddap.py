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

from dataclasses import dataclass, replace

import torch.nn.functional as F
from torch import Tensor

from protofleet.methods import fedavg
from protofleet.methods.contract.base import Ask, Method, Payload, Round, Samples
from protofleet.methods.contract.cost import Cost, Sizes, eight_bytes
from protofleet.methods.maths.contrast import contrast, cosines, distances_to_own, own_mean
from protofleet.methods.maths.fusion import similarity_mean
from protofleet.methods.nets.base import Net
from protofleet.methods.parts.averaging import weighted_mean
from protofleet.methods.parts.domains import (
    DOMAIN_ROWS,
    DomainRows,
    DomainsHyper,
    Place,
    own_and_others,
    rows_by_place,
    rows_received,
    rows_to_send,
    table_of_rows,
)
from protofleet.methods.parts.local import train
from protofleet.methods.parts.prototypes import (
    LARGEST_NUMBER,
    SeenFeatures,
    class_row_wants,
    table_of,
)
from protofleet.methods.parts.small_classes import DevicesByClass, sent_rows
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import WEIGHTS, load_weights, weight_wants, weights_of
from protofleet.protocol.settings.bounds import Batch, Epochs, Temperature, Weight


@dataclass(frozen=True)
class Hyper(DomainsHyper):
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


class Server(DevicesByClass, fedavg.Server):
    hyper: Hyper

    def __init__(self, model: Net, hyper: Hyper, seed: int) -> None:
        super().__init__(model, hyper, seed)
        self.table: dict[Place, Tensor] = {}

    def round(self) -> Round:
        weights = weight_wants(self.model)
        rows = class_row_wants(self.model, LARGEST_NUMBER, row_per_example=True)
        replies = yield Ask("train", self.payload(), {**weights, **rows})
        load_weights(self.model, weighted_mean(replies, weights))
        self.count_devices(replies)
        sent = rows_by_place(replies, self.cohort, self.model)
        self.table |= {place: similarity_mean(own, self.hyper.fusion_tau) for place, own in sent.items()}

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
        (self.own, self.known), self.others = own_and_others(found, self.domain or self.device, self.model)

    def run(self, ask: Ask) -> Payload:
        generator = self.generator(ask.phase)
        train(self.model, self.data, self.objective, self.hyper, generator, before_epoch=self.seen.clear)
        means = self.seen.means().to(next(self.model.parameters()).dtype)
        rows = sent_rows(means, self.seen.counts, self.hyper.least_samples, self.number)
        return {**weights_of(self.model), **rows}

    def objective(self, x: Tensor, y: Tensor) -> Tensor:
        z = self.model.embed(x)
        self.seen.add(z.detach(), y)
        return F.cross_entropy(self.model.head(z), y) + self.alignment(z, y)

    def alignment(self, z: Tensor, y: Tensor) -> Tensor:
        hyper = self.hyper
        total = hyper.lambda1 * own_mean(distances_to_own(z, y, self.own, self.known))
        if self.others is not None:
            near = cosines(z, self.others.rows)
            total = total + hyper.lambda2 * own_mean(contrast(near, y, self.others.labels, hyper.tau))
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
