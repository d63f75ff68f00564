"""FPL (Huang et al., CVPR 2023): each class has prototypes for different domains, and one for all domains.

Client k        : one prototype a class, the mean of the features seen in the last local epoch
Server, per class: FINCH over the devices' prototypes -> G, its clusters' means; model <- FedAvg
Client, next round: L = L_CE + mean_b( L_cluster + L_unbiased )
L_cluster  = -log( sum_{g in G^y} e^(cos(f, g) / tau) / sum_{all g} e^(cos(f, g) / tau) )
L_unbiased = |f - mean G^y|^2 / D

FINCH always joins two or three prototypes into one cluster. So if fewer than four devices hold a class, both terms
use the same point.

Choices where the text states nothing, or differs from the code:
  tau           0.02, as in the authors' code. MarsFL, by the same group, has 0.2.
  proto_source  "training" is the authors' code: features before each step of the last epoch. "eval" computes them
                after this epoch.
  means         are taken over the samples whose class has prototypes. The authors' code divides by the size of the
                whole batch. If all classes have prototypes, both means are the same.
Before any prototype is known, the loss is L_CE alone. If no device of a round holds a class, the prototypes of
the class do not change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch.nn.functional as F
from torch import Tensor

from protofleet.methods import fedavg
from protofleet.methods.contract.base import Ask, Method, Payload, Samples
from protofleet.methods.contract.cost import Cost, Sizes, eight_bytes
from protofleet.methods.contract.wants import TensorSpec
from protofleet.methods.maths.contrast import contrast, cosines, own_mean
from protofleet.methods.maths.means import ClassMeans, class_means
from protofleet.methods.maths.proximity import prototype_mse
from protofleet.methods.nets.base import Net
from protofleet.methods.parts.clusters import ClusteringServer, Clusters, Table, clusters_in
from protofleet.methods.parts.local import demand_one_of, embed, train
from protofleet.methods.parts.prototypes import (
    LARGEST_NUMBER,
    ROWS,
    SeenFeatures,
    class_row_wants,
    class_rows,
    table_of,
)
from protofleet.methods.parts.small_classes import LeastSamplesHyper, sent_rows
from protofleet.methods.parts.weights import WEIGHTS, weights_of
from protofleet.protocol.settings.bounds import Epochs, Temperature

Source = Literal["training", "eval"]


@dataclass(frozen=True)
class Hyper(LeastSamplesHyper):
    epochs: Epochs = 10
    tau: Temperature = 0.02
    """Temperature of L_cluster (0.2 in MarsFL)."""
    proto_source: Source = "training"
    """Source of a device's prototypes, `training` (features before each step of the last epoch) or `eval` (a pass
    after this epoch).
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        demand_one_of("proto_source", self.proto_source, get_args(Source))


class Server(ClusteringServer):
    def wants(self) -> Mapping[str, TensorSpec]:
        return class_row_wants(self.model, LARGEST_NUMBER, row_per_example=True)

    def table_in(self, answer: Payload) -> Table:
        """Return the rows of a device's update; rows of the same class are pooled, so each class counts once."""
        rows = class_rows(*table_of(answer, self.model))
        return rows["prototypes"], rows["labels"]


class Client(fedavg.Client):
    hyper: Hyper

    def __init__(self, model: Net, data: Samples, hyper: Hyper, seed: int, device: str) -> None:
        super().__init__(model, data, hyper, seed, device)
        self.clusters: Clusters | None = None
        self.seen = SeenFeatures(model)

    def receive(self, payload: Payload) -> None:
        super().receive(payload)
        self.clusters = clusters_in(payload, self.model)

    def run(self, ask: Ask) -> Payload:
        generator = self.generator(ask.phase)
        train(self.model, self.data, self.objective, self.hyper, generator, before_epoch=self.seen.clear)
        means, counts = self.own_prototypes()
        return {**weights_of(self.model), **sent_rows(means, counts, self.hyper.least_samples, self.number)}

    def objective(self, x: Tensor, y: Tensor) -> Tensor:
        z = self.model.embed(x)
        self.seen.add(z.detach(), y)
        loss = F.cross_entropy(self.model.head(z), y)
        return loss if self.clusters is None else loss + self.towards(self.clusters, z, y)

    def towards(self, G: Clusters, z: Tensor, y: Tensor) -> Tensor:
        near = cosines(z, G.rows)
        return own_mean(contrast(near, y, G.labels, self.hyper.tau)) + prototype_mse(z, y, G.means, G.known)

    def own_prototypes(self) -> ClassMeans:
        if self.hyper.proto_source == "eval":
            return class_means(embed(self.model, self.data.x), self.data.y, self.model.classes)
        return self.seen.means().to(next(self.model.parameters()).dtype), self.seen.counts


def cost(sizes: Sizes) -> Cost:
    """Return the cost; the paper does not count labels."""
    G = sizes.global_prototypes
    up = {"weights": sizes.weights, "prototypes": sizes.held * sizes.D, "labels": eight_bytes(sizes.held)}
    return Cost(up, {"weights": sizes.weights, "prototypes": G * sizes.D, "labels": eight_bytes(G)})


METHOD = Method("Huang et al., CVPR 2023: FPL", Hyper, Server, Client, arrays=(*WEIGHTS, *ROWS), cost=cost)
