"""FedPLCC: several prototypes a class, weighted by sample counts; devices train towards the nearest prototype.

Client k, after training: per class, FINCH* over all h(x) -> prototypes P and counts W           (eq. 9)
Server, per class       : FINCH* over all devices' prototypes -> G, weights summed               (eq. 10)
                          W <- W / sum of the class's W                                          (eq. 11)
                          model <- FedAvg
Client, next round      : L = L_CE + lambda1 L_contra(G, W) + lambda2 L_corr(G, W)               (eqs. 4 to 8)

Choices where the paper states nothing, or cannot be followed:
  sums        eqs. 5, 6 and 8 are sums over the data; we use means over the batch. L_CE has a softmax, which eq. 5
              does not print.
  eq. 7       cos^alpha has no value for a cosine below 0. Features behind a ReLU have no such cosines. For other
              features, such a cosine is set to 1e-6 ("clamp"), because the root is infinitely steep at 0; or the
              power keeps the sign of the cosine ("signed").
  eqs. 6, 11  W sums to 1 in each class. So the numerator of eq. 6 is a mean, and all classes have the same weight in
              the denominator of eq. 6. We follow the paper here.
  eq. 8       uses the k = ceil(phi |G^y|) largest values of s W.
  eqs. 9, 10  each member of a cluster counts once in the mean, without its weight. weighted_centroid gives the true
              mean of the samples.
  tau         is 0.07. Section IV-B2 of the paper calls two values "optimal": 0.55, and a lower value.
  E           counts epochs, as in line 16 of alg. 1.
  lambda2     if left out, it is 10 lambda1, as in IV-B4. At lambda1 = 100, this multiplies a loss between -1 and 0 by
              1000. Then CE has almost no influence on the gradient, and float16 gradients would overflow.
Before any prototype is known, the loss is L_CE alone. If no device of a round holds a class, G and W of the
class do not change.
Table V: use_weights=false is "w=1", phi=1, use_contra=false, use_corr=false.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protofleet.methods import fedavg
from protofleet.methods.contract.base import Ask, Method, Payload, Samples
from protofleet.methods.contract.cost import Cost, Sizes, eight_bytes
from protofleet.methods.contract.received import demand_arrays
from protofleet.methods.contract.wants import TensorSpec
from protofleet.methods.maths.contrast import corrected, own_mean, sparse_similarity, weighted_contrast
from protofleet.methods.maths.finch import finch_star_in_parts
from protofleet.methods.maths.geometry import unit
from protofleet.methods.nets.base import Net
from protofleet.methods.parts.clusters import (
    ClusteringServer,
    Table,
    cluster_wants,
    local_clusters,
    most_examples,
    table_of,
)
from protofleet.methods.parts.local import demand_one_of, train
from protofleet.methods.parts.prototypes import HELD_ROWS, row_specs
from protofleet.methods.parts.rules import Nearest
from protofleet.methods.parts.small_classes import LeastSamplesHyper
from protofleet.methods.parts.weights import WEIGHTS, weights_of
from protofleet.protocol.settings.bounds import Batch, Epochs, PositiveShare, Temperature, Weight

Negative = Literal["clamp", "signed"]


@dataclass(frozen=True)
class Hyper(LeastSamplesHyper):
    """The settings, with defaults for Digit-5.

    lambda1 is 20 for Office-10 and 1 for DomainNet.
    """

    epochs: Epochs = 10
    batch: Batch = 32
    alpha: PositiveShare = 0.5
    """Power of the cosine with a prototype."""
    tau: Temperature = 0.07
    """Temperature of L_contra."""
    phi: PositiveShare = 0.5
    """Part of the prototypes of a class that L_corr uses (the prototypes with the largest weighted cosines)."""
    lambda1: Weight = 100.0
    """Weight of L_contra (20 for Office-10, 1 for DomainNet); 0 means off."""
    lambda2: Weight | None = None
    """Weight of L_corr; if left out, the weight is 10 times `lambda1`."""
    negative: Negative = "clamp"
    """Treatment of a negative cosine, `clamp` (held at 1e-6) or `signed` (the power keeps its sign)."""
    weighted_centroid: bool = False
    """If true, the members of a cluster are averaged with their numbers of samples as weights."""
    use_weights: bool = True
    """If false, every prototype has the weight 1."""
    use_contra: bool = True
    """If false, the loss has no L_contra."""
    use_corr: bool = True
    """If false, the loss has no L_corr."""

    def __post_init__(self) -> None:
        super().__post_init__()
        demand_one_of("negative", self.negative, get_args(Negative))

    @property
    def weight_of_corr(self) -> float:
        return 10 * self.lambda1 if self.lambda2 is None else self.lambda2


class Server(ClusteringServer):
    hyper: Hyper
    comes = ("prototypes", "labels", "counts")
    goes = ("prototypes", "labels", "shares")  # G [G, D], labels [G], W [G]

    def wants(self) -> Mapping[str, TensorSpec]:
        """Return the specifications of the arrays.

        If a device sends several rows of a class, each of these rows must stand for two samples or more.
        """
        wants = cluster_wants(self.model, self.cohort, row_per_example=False)
        high, most = most_examples(self.cohort), wants["labels"].most
        counts = TensorSpec(("J",), "int64", low=1, high=high, most=most, of_examples=True, repeated="labels")
        return {**wants, "counts": counts}

    def clusters(self, own: Table) -> Table:
        """Return FINCH* of the rows that all devices sent for one class."""
        rows, labels, counts = own
        G, W = finch_star_in_parts(rows, counts, weighted_centroid=self.hyper.weighted_centroid)
        return G, labels[: len(G)], (W.double() / W.sum()).to(G.dtype)


class Client(fedavg.Client):
    hyper: Hyper

    def __init__(self, model: Net, data: Samples, hyper: Hyper, seed: int, device: str) -> None:
        super().__init__(model, data, hyper, seed, device)
        self.table: Table | None = None

    def receive(self, payload: Payload) -> None:
        super().receive(payload)
        self.table = None
        if any(name in payload for name in Server.goes):
            specs = row_specs(self.model)
            demand_arrays(payload, {**specs, "shares": replace(specs["prototypes"], shape=("rows",))})
            self.table = table_of(payload, Server.goes)

    def run(self, ask: Ask) -> Payload:
        train(self.model, self.data, self.objective, self.hyper, self.generator(ask.phase))
        rows, labels, counts = local_clusters(self.model, self.data, self.hyper.least_samples, self.number)
        return {**weights_of(self.model), "prototypes": rows, "labels": labels, "counts": counts}

    def objective(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss of eq. 4."""
        hyper, z = self.hyper, self.model.embed(x)
        loss = F.cross_entropy(self.model.head(z), y)
        if self.table is None:
            return loss
        G, labels, shares = self.table
        W = shares if hyper.use_weights else torch.ones_like(shares)
        s = sparse_similarity(z, G, hyper.alpha, signed=hyper.negative == "signed")
        if hyper.use_contra:
            loss = loss + hyper.lambda1 * own_mean(weighted_contrast(s, y, labels, W, hyper.tau))
        if hyper.use_corr:
            loss = loss + hyper.weight_of_corr * own_mean(corrected(s, y, labels, W, hyper.phi))
        return loss

    def other_rules(self) -> Mapping[str, nn.Module]:
        if self.table is None:
            return {}
        G, labels, _ = self.table
        return {"prototype": Nearest(unit(G), labels, self.model.classes, "cosine", missing=-2.0)}


def cost(sizes: Sizes) -> Cost:
    """Return the cost; the paper counts D + 1 numbers for each prototype, and this function also counts the label."""
    J, G = sizes.local_prototypes, sizes.global_prototypes
    up = {"weights": sizes.weights, "prototypes": J * sizes.D}
    up |= {"labels": eight_bytes(J), "counts": eight_bytes(J)}
    down = {"weights": sizes.weights, "prototypes": G * sizes.D, "labels": eight_bytes(G), "shares": G}
    return Cost(up, down)


METHOD = Method(
    "Kuang et al.: FedPLCC", Hyper, Server, Client, other_rules=("prototype",),
    arrays=(*WEIGHTS, *HELD_ROWS, "shares"), cost=cost, calmer=("lr", "lambda1"),
)  # fmt: skip
