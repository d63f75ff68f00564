"""FedProto (Tan et al., AAAI 2022): devices share class prototypes, never weights.

Client i: minimise CE(f_i(x), y) + lam * MSE(z_i(x), C_y)                       (eq. 7)
Server  : C_j <- mean of C_ij over the devices i that hold class j              (eq. 6, without its weights)

f_i is the network of device i, and z_i its embedding. Where the authors' code differs from the paper, the default
follows the code:
  aggregation   every device counts once. "weighted" is eq. 6, where a device counts by its examples.
  proto_source  C_ij is the mean of the features that the device computed in training, in the last local epoch. With
                "eval", they are computed after training, in evaluation mode.
  inference     the nearest global prototype, by squared distance. "classifier" is the device's own last layer, which
                also predicts until the first prototypes arrive. A class without a prototype is never predicted.
If no device of the cohort holds a class, the server keeps the row of the class.

Two settings are for comparisons in other papers, and are off by default:
  average_models  as in FPL's code for FedProto: the models are also averaged, as in FedAvg, and the global model is
                  reported, as in the tables of FedLSA and FedPLCC. (FPL predicts with the classifier.) All devices
                  must then have the same network.
  final_fit       as in FedHP's table: after the last broadcast every device fits once more to its own data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch.nn.functional as F
from torch import Tensor, nn

from protofleet.methods import singleset
from protofleet.methods.contract.averages import Averaged, Weighing
from protofleet.methods.contract.base import Ask, Method, Payload, Reply, Samples
from protofleet.methods.contract.cost import Cost, Sizes, eight_bytes
from protofleet.methods.contract.wants import TensorSpec
from protofleet.methods.maths.means import (
    ClassMeans,
    average_class_means,
    class_means,
    merge_class_means,
)
from protofleet.methods.maths.proximity import prototype_mse
from protofleet.methods.nets.base import Net
from protofleet.methods.parts.averaging import weighted_mean
from protofleet.methods.parts.local import demand_one_of, embed, train
from protofleet.methods.parts.prototypes import HELD_ROWS, SeenFeatures, has_rows, table_of
from protofleet.methods.parts.rules import both_ways
from protofleet.methods.parts.small_classes import CountsIfLimited, LeastSamplesHyper, sent_means
from protofleet.methods.parts.tables import TableServer
from protofleet.methods.parts.weights import WEIGHTS, load_weights, weight_wants, weights_of
from protofleet.protocol.settings.bounds import Weight

Aggregation = Literal["unweighted", "weighted"]
Source = Literal["training", "eval"]
Inference = Literal["prototype", "classifier"]

MERGE: Mapping[str, Callable[[Iterable[ClassMeans], Sequence[float] | None], ClassMeans]] = {
    "unweighted": average_class_means,
    "weighted": merge_class_means,
}
ROWS_BY: Mapping[str, Weighing] = {"unweighted": "devices", "weighted": "counts"}


@dataclass(frozen=True)
class Hyper(LeastSamplesHyper):
    lam: Weight = 1.0
    """Weight (lambda) of the distance to the prototypes; the scripts of HtFLlib and FedTGP use 10, and 0
    means off.
    """
    aggregation: Aggregation = "unweighted"
    """Weights of the devices in a prototype, `unweighted`, or `weighted` by examples (eq. 6)."""
    proto_source: Source = "training"
    """Source of a device's prototypes, `training` (the features seen in the last local epoch) or `eval` (a
    pass after training).
    """
    inference: Inference = "prototype"
    """Prediction, by the nearest global `prototype` or by the device's own `classifier`."""
    average_models: bool = False
    """If true, the models are averaged too, as in FPL's code, and the global model is reported."""
    final_fit: bool = False
    """If true, every device fits once more to its own data after the last broadcast, as in FedHP's table."""

    def __post_init__(self) -> None:
        super().__post_init__()
        demand_one_of("aggregation", self.aggregation, get_args(Aggregation))
        demand_one_of("proto_source", self.proto_source, get_args(Source))
        demand_one_of("inference", self.inference, get_args(Inference))


class Server(CountsIfLimited, TableServer):
    hyper: Hyper

    def merge(self, pieces: Iterable[ClassMeans], weights: Sequence[float] | None = None) -> ClassMeans:
        return MERGE[self.hyper.aggregation](pieces, weights)

    def learn(self, replies: Sequence[Reply]) -> None:
        self.count_devices(replies)
        super().learn(replies)
        if self.hyper.average_models:
            load_weights(self.model, weighted_mean(replies, weight_wants(self.model)))

    def wants(self) -> Mapping[str, TensorSpec]:
        weights = weight_wants(self.model) if self.hyper.average_models else {}
        return {**weights, **super().wants()}

    def payload(self) -> Payload:
        shared = weights_of(self.model) if self.hyper.average_models else {}
        return {**shared, **super().payload()}

    def restore(self, state: Payload) -> None:
        super().restore(state)
        load_weights(self.model, state)


class Client(singleset.Client):
    hyper: Hyper

    def __init__(self, model: Net, data: Samples, hyper: Hyper, seed: int, device: str) -> None:
        super().__init__(model, data, hyper, seed, device)
        self.prototypes, self.known = table_of({}, model)
        self.seen = SeenFeatures(model)

    def receive(self, payload: Payload) -> None:
        load_weights(self.model, payload)
        if has_rows(payload):
            self.prototypes, self.known = table_of(payload, self.model)

    def run(self, ask: Ask) -> Payload:
        self.fit(ask.phase)
        weights = weights_of(self.model) if self.hyper.average_models else {}
        return {**weights, **self.sent_prototypes()}

    def fit(self, purpose: str) -> None:
        generator = self.generator(purpose)
        train(self.model, self.data, self.objective, self.hyper, generator, before_epoch=self.seen.clear)

    def after_last_round(self) -> None:
        if self.hyper.final_fit:
            self.fit("settle")

    def objective(self, x: Tensor, y: Tensor) -> Tensor:
        z = self.model.embed(x)  # [B, D]
        self.seen.add(z.detach(), y)
        loss = F.cross_entropy(self.model.head(z), y)
        return loss + self.hyper.lam * prototype_mse(z, y, self.prototypes, self.known)

    def sent_prototypes(self) -> Payload:
        return sent_means(*self.own_prototypes(), self.hyper.least_samples, self.number)

    def own_prototypes(self) -> ClassMeans:
        if self.hyper.proto_source == "eval":
            return class_means(embed(self.model, self.data.x), self.data.y, self.model.classes)
        return self.seen.means().to(self.prototypes.dtype), self.seen.counts

    def rule(self) -> nn.Module:
        return both_ways(self.model.head, self.prototypes, self.known)[self.hyper.inference]

    def other_rules(self) -> Mapping[str, nn.Module]:
        both = both_ways(self.model.head, self.prototypes, self.known)
        return {name: rule for name, rule in both.items() if name != self.hyper.inference}


def cost(sizes: Sizes) -> Cost:
    """Return the cost.

    The paper leaves out the labels and the numbers of samples, and assumes a row for every class. Here the labels and
    numbers are included, and the server sends only rows of classes that a device has held.
    """
    held = eight_bytes(sizes.held)
    up = {"prototypes": sizes.held * sizes.D, "labels": held, "counts": held}
    down = {"prototypes": sizes.rows * sizes.D, "labels": eight_bytes(sizes.rows)}
    return Cost(up, {} if sizes.first_round else down)


def cost_with_models(sizes: Sizes) -> Cost:
    own, models = cost(sizes), {"weights": sizes.weights}
    return Cost({**models, **own.up}, {**models, **own.down})


def variant(hyper: Hyper) -> Method:
    """Return the method under these settings.

    With averaged models the result of the global model is reported. If every device fits the model at the
    end, the personal result is reported.
    """
    rows = ROWS_BY[hyper.aggregation]
    if not hyper.average_models:
        return replace(METHOD, averaged={"train": Averaged(rows=rows)})
    view = "personal" if hyper.final_fit else "global"
    return replace(
        METHOD, reports=view, alike="network", arrays=(*WEIGHTS, *HELD_ROWS), cost=cost_with_models,
        averaged={"train": Averaged(WEIGHTS, rows=rows)},
    )  # fmt: skip


METHOD = Method(
    "arXiv:2105.00243", Hyper, Server, Client,
    reports="personal", alike="embedding", other_rules=("prototype", "classifier"),
    private="the model", arrays=HELD_ROWS, averaged={"train": Averaged(rows="devices")},
    buffered=True, cost=cost, variant=variant,
)  # fmt: skip
