"""FedProto (Tan et al., AAAI 2022): devices share class prototypes, never weights.

Client i: minimise CE(f_i(x), y) + lam * MSE(z_i(x), C_y)                       (eq. 7)
Server  : C_j <- mean over the devices that hold class j of C_ij                (eq. 6, without its weights)

z is what the last layer sees. Where the authors' code leaves the paper, the code is the default:
  aggregation   every device counts once; "weighted" is eq. 6, by examples.
  proto_source  C_ij is the mean of the features seen while training in the last local epoch; "eval" takes
                them after training, in evaluation mode.
  inference     the nearest global prototype, by squared distance; "classifier" is the device's own last
                layer, which also serves until prototypes come. A class without one is never predicted.
The server keeps its row of a class that nobody in the cohort holds.

Two settings are others' comparisons and off by default:
  average_models  as FPL's code runs FedProto: the models are averaged too, as in FedAvg, and the global one is
                  reported (there by its classifier), as FedLSA's and FedPLCC's tables have it. Networks cannot
                  be mixed then.
  final_fit       as in FedHP's table: after the last broadcast every device fits once more to its own data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from protofleet.methods import singleset
from protofleet.methods.contract.base import Ask, Method, Payload, Predict, Reply, Round, Samples, ServerHalf
from protofleet.methods.contract.cost import Cost, Sizes
from protofleet.methods.contract.wants import TensorSpec
from protofleet.methods.maths.geometry import squared_distances
from protofleet.methods.maths.means import (
    ClassMeans,
    average_class_means,
    class_means,
    class_sums,
    means_of,
    merge_class_means,
)
from protofleet.methods.maths.pulls import prototype_mse
from protofleet.methods.nets.base import Net
from protofleet.methods.parts.averaging import weighted_mean
from protofleet.methods.parts.local import LocalHyper, demand_one_of, embed, train
from protofleet.methods.parts.weights import load_weights, place_of, snapshot, weight_wants, weights_of
from protofleet.protocol.settings.bounds import Weight

Aggregation = Literal["unweighted", "weighted"]
Source = Literal["training", "eval"]
Inference = Literal["prototype", "classifier"]

MERGE: Mapping[str, Callable[[Iterable[ClassMeans]], ClassMeans]] = {
    "unweighted": average_class_means,
    "weighted": merge_class_means,
}
MOST_EXAMPLES = 2**31 - 1  # of one class on one device; sums stay exact


@dataclass(frozen=True)
class Hyper(LocalHyper):
    lam: Weight = 1.0  # 10 in HtFLlib and in FedTGP's scripts
    aggregation: Aggregation = "unweighted"
    proto_source: Source = "training"
    inference: Inference = "prototype"
    average_models: bool = False
    final_fit: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        demand_one_of("aggregation", self.aggregation, get_args(Aggregation))
        demand_one_of("proto_source", self.proto_source, get_args(Source))
        demand_one_of("inference", self.inference, get_args(Inference))


class Server(ServerHalf):
    hyper: Hyper

    def __init__(self, model: Net, hyper: Hyper, seed: int) -> None:
        super().__init__(model, hyper, seed)
        self.prototypes, self.known = table_of({}, model)

    def round(self) -> Round:
        replies = yield Ask("train", self.payload(), self.wants())
        merged, counts = MERGE[self.hyper.aggregation](self.class_means_of(r) for r in replies)
        held = counts > 0
        self.prototypes = torch.where(held.unsqueeze(1), merged, self.prototypes)
        self.known = self.known | held
        if self.hyper.average_models:
            load_weights(self.model, weighted_mean(replies, weight_wants(self.model)))

    def wants(self) -> Mapping[str, TensorSpec]:
        classes, size = self.model.classes, self.model.embedding_size
        return {
            **(weight_wants(self.model) if self.hyper.average_models else {}),
            "prototypes": TensorSpec(("held", size), most=classes),
            "labels": TensorSpec(("held",), "int64", low=0, high=classes - 1, most=classes),
            "counts": TensorSpec(
                ("held",), "int64", low=1, high=MOST_EXAMPLES, most=classes, of_examples=True
            ),
        }

    def class_means_of(self, reply: Reply) -> ClassMeans:
        """A device's rows as a table. A class that it names twice is pooled, so that it counts once."""
        sent = reply.payload
        return class_means(sent["prototypes"], sent["labels"], self.model.classes, sent["counts"])

    def payload(self) -> Payload:
        shared = weights_of(self.model) if self.hyper.average_models else {}
        if not self.known.any():
            return shared
        rows = {"prototypes": self.prototypes[self.known], "labels": self.known.nonzero().squeeze(1)}
        return {**shared, **rows}

    def state(self) -> Payload:
        return snapshot(self.payload())

    def restore(self, state: Payload) -> None:
        load_weights(self.model, state)
        self.prototypes, self.known = table_of(state, self.model)


class Client(singleset.Client):
    hyper: Hyper

    def __init__(self, model: Net, data: Samples, hyper: Hyper, seed: int, device: str) -> None:
        super().__init__(model, data, hyper, seed, device)
        self.prototypes, self.known = table_of({}, model)
        self.forget()

    def receive(self, payload: Payload) -> None:
        load_weights(self.model, payload)
        if "prototypes" in payload:
            self.prototypes, self.known = table_of(payload, self.model)

    def run(self, ask: Ask) -> Payload:
        self.fit(ask.phase)
        means, counts = self.own_prototypes()
        held = counts > 0
        return {
            **(weights_of(self.model) if self.hyper.average_models else {}),
            "prototypes": means[held],  # [C_i, D]
            "labels": held.nonzero().squeeze(1),
            "counts": counts[held],
        }

    def fit(self, purpose: str) -> None:
        generator = self.generator(purpose)
        train(self.model, self.data, self.objective, self.hyper, generator, before_epoch=self.forget)

    def settle(self) -> None:
        if self.hyper.final_fit:
            self.fit("settle")

    def objective(self, x: Tensor, y: Tensor) -> Tensor:
        z = self.model.embed(x)  # [B, D]
        self.remember(z.detach(), y)
        loss = F.cross_entropy(self.model.head(z), y)
        return loss + self.hyper.lam * prototype_mse(z, y, self.prototypes, self.known)

    def forget(self) -> None:
        classes, size = self.model.classes, self.model.embedding_size
        place = place_of(self.model)
        self.sums = torch.zeros(classes, size, dtype=torch.float64, device=place)
        self.counts = torch.zeros(classes, dtype=torch.int64, device=place)

    def remember(self, z: Tensor, y: Tensor) -> None:
        sums, counts = class_sums(z, y, self.model.classes)
        self.sums, self.counts = self.sums + sums, self.counts + counts

    def own_prototypes(self) -> ClassMeans:
        if self.hyper.proto_source == "eval":
            return class_means(embed(self.model, self.data.x), self.data.y, self.model.classes)
        return means_of(self.sums, self.counts).to(self.prototypes.dtype), self.counts

    def predict(self, x: Tensor) -> Tensor:
        return self.nearest(x) if self.hyper.inference == "prototype" else super().predict(x)

    def ways(self) -> Mapping[str, Predict]:
        ways = {"prototype": self.nearest, "classifier": super().predict}
        return {name: way for name, way in ways.items() if name != self.hyper.inference}

    def nearest(self, x: Tensor) -> Tensor:
        if not self.known.any():
            return super().predict(x)
        scores = -squared_distances(self.model.embed(x), self.prototypes)  # [B, C]
        return scores.masked_fill(~self.known, -math.inf)


def table_of(payload: Payload, model: Net) -> tuple[Tensor, Tensor]:
    """[C, D] and a mask [C] from rows with labels; nothing is known of an empty payload."""
    if "prototypes" not in payload:
        place = place_of(model)
        unknown = torch.zeros(model.classes, dtype=torch.bool, device=place)
        return torch.zeros(model.classes, model.embedding_size, device=place), unknown
    means, counts = class_means(payload["prototypes"], payload["labels"], model.classes)
    return means, counts > 0


def cost(sizes: Sizes) -> Cost:
    """The paper's is without labels and counts; down comes what anybody has ever held."""
    up = {"prototypes": sizes.held * sizes.D, "labels": sizes.held, "counts": sizes.held}
    return Cost(up, {} if sizes.first_round else {"prototypes": sizes.C * sizes.D, "labels": sizes.C})


def cost_with_models(sizes: Sizes) -> Cost:
    own, models = cost(sizes), {"weights": sizes.weights}
    return Cost({**models, **own.up}, {**models, **own.down})


def variant(hyper: Hyper) -> Method:
    """What is one model for all is reported as such, unless every device has made it its own at the end."""
    if not hyper.average_models:
        return METHOD
    view = "personal" if hyper.final_fit else "global"
    return replace(METHOD, reports=view, mixed_networks=False, cost=cost_with_models)


METHOD = Method(
    "arXiv:2105.00243", Hyper, Server, Client,
    reports="personal", mixed_networks=True, ways=("prototype", "classifier"), cost=cost, variant=variant,
)  # fmt: skip
