"""FedPLVM (Wang et al., NeurIPS 2024): prototypes clustered on the device and again on the server.

Client k, after training: per class, FINCH over all f(x) -> its clusters' means
Server, per class       : FINCH over all devices' means -> G; model <- FedAvg
Client, next round      : L = L_CE + lam (L_alpha + L_corr)
L_alpha = -log( sum_{g in G^y} e^(s(g) / tau) / sum_{all g} e^(s(g) / tau) ),  s = cos(f, g)^alpha
L_corr  = 2 (cos(f, mean G^y) - 1)^2

Choices where the text states nothing, or differs from the code:
  alpha       for a negative cosine, cos^alpha is not a real number, and the code gives NaN. Features behind a ReLU
              have no negative cosines. For other features, a negative cosine is set to 1e-6 ("clamp"), or |cos|^alpha
              gets the sign of cos ("signed").
  start       the prototypes are used from the first round in which any exist. The code waits until every device has
              sent prototypes.
  means       are taken over the samples of the batch whose class has prototypes.
  models      are weighted by N_i / N. The code uses 1 / K if labels are spread evenly.
  samples     the prototypes are made from all samples, in evaluation mode. The code drops the last incomplete batch.
Before any prototype is known, the loss is L_CE alone. If no device of a round holds a class, the prototypes of
the class do not change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch.nn.functional as F
from torch import Tensor

from protofleet.methods import fedavg
from protofleet.methods.contract.base import Ask, Method, Payload, Samples
from protofleet.methods.contract.cost import Cost, Sizes, eight_bytes
from protofleet.methods.maths.contrast import contrast, off_centre, own_mean, sparse_similarity
from protofleet.methods.nets.base import Net
from protofleet.methods.parts.clusters import ClusteringServer, Clusters, clusters_in, local_clusters
from protofleet.methods.parts.local import demand_one_of
from protofleet.methods.parts.prototypes import ROWS
from protofleet.methods.parts.small_classes import LeastSamplesHyper
from protofleet.methods.parts.weights import WEIGHTS
from protofleet.protocol.settings.bounds import Batch, Epochs, Momentum, PositiveShare, Temperature, Weight

Negative = Literal["clamp", "signed"]


@dataclass(frozen=True)
class Hyper(LeastSamplesHyper):
    """The settings, with the defaults of the authors' code."""

    epochs: Epochs = 2
    batch: Batch = 32
    momentum: Momentum = 0.5
    alpha: PositiveShare = 0.25
    """Power of the cosine with a prototype."""
    tau: Temperature = 0.07
    """Temperature of L_alpha."""
    lam: Weight = 100.0
    """Weight (lambda) of L_alpha + L_corr; 0 means off."""
    negative: Negative = "clamp"
    """Treatment of a negative cosine, `clamp` (held at 1e-6) or `signed` (the power keeps its sign)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        demand_one_of("negative", self.negative, get_args(Negative))


class Client(fedavg.Client):
    hyper: Hyper

    def __init__(self, model: Net, data: Samples, hyper: Hyper, seed: int, device: str) -> None:
        super().__init__(model, data, hyper, seed, device)
        self.clusters: Clusters | None = None

    def receive(self, payload: Payload) -> None:
        super().receive(payload)
        self.clusters = clusters_in(payload, self.model)

    def run(self, ask: Ask) -> Payload:
        sent = super().run(ask)
        rows, labels, _ = local_clusters(self.model, self.data, self.hyper.least_samples, self.number)
        return {**sent, "prototypes": rows, "labels": labels}

    def objective(self, x: Tensor, y: Tensor) -> Tensor:
        z = self.model.embed(x)
        loss = F.cross_entropy(self.model.head(z), y)
        return loss if self.clusters is None else loss + self.hyper.lam * self.towards(self.clusters, z, y)

    def towards(self, G: Clusters, z: Tensor, y: Tensor) -> Tensor:
        s = sparse_similarity(z, G.rows, self.hyper.alpha, signed=self.hyper.negative == "signed")
        near = contrast(s, y, G.labels, self.hyper.tau)
        return own_mean(near) + 2 * own_mean(off_centre(z, y, G.means, G.known))


def cost(sizes: Sizes) -> Cost:
    J, G = sizes.local_prototypes, sizes.global_prototypes
    up = {"weights": sizes.weights, "prototypes": J * sizes.D, "labels": eight_bytes(J)}
    return Cost(up, {"weights": sizes.weights, "prototypes": G * sizes.D, "labels": eight_bytes(G)})


METHOD = Method(
    "arXiv:2403.09048", Hyper, ClusteringServer, Client,
    arrays=(*WEIGHTS, *ROWS), cost=cost, calmer=("lr", "lam"),
)  # fmt: skip
