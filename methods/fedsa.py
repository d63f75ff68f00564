"""FedSA (Zhou et al., AAAI 2025): devices train features towards semantic anchors; models are never sent.

Client i: minimise CE + lambda1 L_R + lambda2 L_MCL + lambda3 L_CC              (eqs. 5 to 9)
          d* = max(d_global, d_i) once a round, then P_i^c = mean of f_i(x)     (eqs. 2 and 6)
Server  : P^c <- mean of P_i^c over the devices that hold c                     (eq. 3)
          A^c <- alpha A^c + (1 - alpha) P^c                                    (eq. 10)

d_i is the margin between the device's own prototypes of the last round in which the device took part. The device's
model has not changed since then. In the first round of a device, and if the device has only one class,
d* = d_global. If no device sends a class, the anchor and the row of P for the class do not change.

Choices where the paper cannot be followed, or the authors' code differs (with the settings that follow the code):
  A, round 1    no loss trains the "trainable embedding layer", so in the code this layer never changes. The anchors
                start as its output for random class anchors. "random" is Table 4 without ER.
  eq. 5         has no gradient if P_i^c is a mean over all data. The default follows the code: the mean squared gap
                of each sample, lambda1 = 10. "batch_prototypes" is eq. 5 on means of the batch, lambda1 = 0.1.
                The gap is a mean over D, and 10 is for D = 512. Shorter embeddings with momentum need less.
  eq. 7         is also computed on samples, as in the code. mcl_on = "batch_prototypes" uses the means of the batch.
  eq. 6         prints N (N - 1) terms divided by (N - 1)^2 (margin = "paper"). We use the mean of these terms. The
                code uses margin = "nearest".
  eq. 8         has no bias (cc_bias = false). The head in the code has a bias, and predicts the class.
  eq. 3         divides by |N_c| although its weights already sum to 1 (aggregation = "paper"). We do not divide.
                The code uses aggregation = "unweighted".
  eq. 2         is computed after training, in evaluation mode. The code uses proto_source = "training": P_i^c is
                then the mean of the features from all training steps of the round.
  lambda2       0.01 for heterogeneous data, 1 for heterogeneous networks. All scripts of the code have 1.
  prediction    the paper does not state how a device predicts. The code takes the nearest P^c by squared distance,
                and only P^c of the last round (keep_prototypes = false). "classifier" is the device's own head, which
                also predicts until there is a P.
  download      devices receive P only to predict, and P doubles the download. With send_prototypes = false, P is not
                sent, and the classifier predicts.
We shuffle the samples and keep the last small batch. The code does neither. The rows of Table 4 differ in
the settings anchors ("random" or not), lambda2 (0 or not) and lambda3 (0 or not). If the head has batch norms, their
statistics are also learned from the anchors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protofleet.methods import singleset
from protofleet.methods.contract.averages import Averaged, Weighing
from protofleet.methods.contract.base import (
    Ask,
    Method,
    Payload,
    Round,
    Samples,
    ServerHalf,
    seeded,
)
from protofleet.methods.contract.cost import Cost, Sizes, eight_bytes
from protofleet.methods.contract.received import demand_arrays
from protofleet.methods.contract.wants import TensorSpec
from protofleet.methods.maths.margins import (
    AGGREGATE,
    anchor_distance,
    anchor_mse,
    batch_prototypes,
    classifier_calibration,
    client_margin,
    ema,
    margin_contrast,
    weight_of,
)
from protofleet.methods.maths.means import ClassMeans, class_means
from protofleet.methods.nets.base import Net, initialised_from
from protofleet.methods.parts.local import demand, demand_one_of, embed, train
from protofleet.methods.parts.prototypes import (
    HELD_ROWS,
    LARGEST_NUMBER,
    SeenFeatures,
    class_means_in,
    held_row_wants,
    known_rows,
    margin_figures,
    table_of,
    table_specs,
)
from protofleet.methods.parts.rules import both_ways
from protofleet.methods.parts.small_classes import CountsIfLimited, LeastSamplesHyper, sent_means
from protofleet.methods.parts.weights import torch_device_of
from protofleet.protocol.settings.bounds import Batch, Epochs, Momentum, Share, Weight

Anchors = Literal["projected", "random"]
Rows = Literal["samples", "batch_prototypes"]
Margin = Literal["pairs", "nearest", "paper"]
Source = Literal["eval", "training"]
Aggregation = Literal["weighted", "unweighted", "paper"]
ROWS_BY: Mapping[str, Weighing] = {"weighted": "counts", "unweighted": "devices"}
Inference = Literal["prototype", "classifier"]

LAMBDA1: Mapping[Rows, float] = {"samples": 10.0, "batch_prototypes": 0.1}


@dataclass(frozen=True)
class Hyper(LeastSamplesHyper):
    epochs: Epochs = 1
    batch: Batch = 10
    momentum: Momentum = 0.0
    weight_decay: Weight = 0.0
    lambda1: Weight | None = None
    """Weight of L_R; if left out, the weight is 10 if `regularisation` is `samples`, and 0.1 otherwise."""
    lambda2: Weight = 0.01
    """Weight of L_MCL (0.01 for heterogeneous data, 1 for heterogeneous networks); 0 means off."""
    lambda3: Weight = 1.0
    """Weight of L_CC; 0 means off."""
    decay: Share = 0.9999
    """Part (alpha) of an anchor that stays in each round."""
    anchors: Anchors = "projected"
    """Anchors at the start, `projected` (the output of an embedding layer) or `random` (Table 4 without ER)."""
    regularisation: Rows = "samples"
    """Rows that L_R compares with the anchors, `samples` (the authors' code) or `batch_prototypes` (eq. 5 on
    means of the batch).
    """
    mcl_on: Rows = "samples"
    """Rows that L_MCL compares with the anchors, `samples` (the authors' code) or `batch_prototypes`."""
    margin: Margin = "pairs"
    """Margin d between prototypes, `pairs` (the mean over all pairs), `nearest` (the authors' code) or
    `paper` (eq. 6 as printed).
    """
    cc_bias: bool = True
    """If true, L_CC trains the bias of the head too; if false, L_CC has no bias, as in eq. 8."""
    proto_source: Source = "eval"
    """Source of a device's prototypes, `eval` (a pass after training) or `training` (the features seen in all
    epochs of the round).
    """
    aggregation: Aggregation = "weighted"
    """Weights of the devices in a prototype, `weighted` by examples, `unweighted` (the authors' code) or
    `paper` (eq. 3 as printed).
    """
    inference: Inference = "prototype"
    """Prediction, by the nearest global `prototype` or by the device's own `classifier`."""
    send_prototypes: bool = True
    """If false, no prototypes are sent to devices, so the download is half as large and the classifier predicts."""
    keep_prototypes: bool = True
    """If false, only prototypes of the last round are used, as in the authors' code."""

    def __post_init__(self) -> None:
        super().__post_init__()
        demand_one_of("anchors", self.anchors, get_args(Anchors))
        demand_one_of("regularisation", self.regularisation, get_args(Rows))
        demand_one_of("mcl_on", self.mcl_on, get_args(Rows))
        demand_one_of("margin", self.margin, get_args(Margin))
        demand_one_of("proto_source", self.proto_source, get_args(Source))
        demand_one_of("aggregation", self.aggregation, get_args(Aggregation))
        demand_one_of("inference", self.inference, get_args(Inference))
        possible = self.send_prototypes or self.inference == "classifier"
        demand("inference", repr(self.inference), possible, "'classifier' where send_prototypes is false")

    def weight_of_regularisation(self) -> float:
        return LAMBDA1[self.regularisation] if self.lambda1 is None else self.lambda1


def check_head(model: Net, hyper: Hyper) -> None:
    if not hyper.cc_bias:
        weight_of(model.head)


def embedding_layer(size: int) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Linear(size, size), nn.BatchNorm1d(size), nn.ReLU()),
        *(nn.Linear(size, size), nn.BatchNorm1d(size), nn.ReLU()),
    )


class Server(CountsIfLimited, ServerHalf):
    hyper: Hyper

    def __init__(self, model: Net, hyper: Hyper, seed: int) -> None:
        super().__init__(model, hyper, seed)
        check_head(model, hyper)
        self.anchors = self.first_anchors()  # A [C, D]
        self.prototypes, self.known = table_of({}, model)  # P [C, D]

    @torch.no_grad()
    def first_anchors(self) -> Tensor:
        """Return the first anchors. The layer with batch norms gets the C class anchors as one batch."""
        C, D = self.model.classes, self.model.embedding_size
        with initialised_from(seeded(self.seed, "server", "anchors").initial_seed()):
            class_anchors = torch.randn(C, D)
            projected: Tensor = embedding_layer(D)(class_anchors)
        first = projected if self.hyper.anchors == "projected" else class_anchors
        return first.to(torch_device_of(self.model))

    def round(self) -> Round:
        replies = yield Ask("train", self.payload(), self.wants())
        self.count_devices(replies)
        pieces = (class_means_in(reply.payload, self.model.classes) for reply in replies)
        merged, counts = AGGREGATE[self.hyper.aggregation](pieces)
        held = counts > 0
        self.anchors = ema(self.anchors, merged, held, self.hyper.decay)
        self.prototypes = torch.where(held.unsqueeze(1), merged, self.prototypes)
        self.known = self.known | held if self.hyper.keep_prototypes else held

    def wants(self) -> Mapping[str, TensorSpec]:
        return held_row_wants(self.model, LARGEST_NUMBER)

    def payload(self) -> Payload:
        return self.state() if self.hyper.send_prototypes else {"anchors": self.anchors}

    def state(self) -> Payload:
        return {"anchors": self.anchors, **known_rows(self.prototypes, self.known)}

    def restore(self, state: Payload) -> None:
        self.anchors = state["anchors"].to(torch_device_of(self.model))
        self.prototypes, self.known = table_of(state, self.model)

    def monitor(self) -> Mapping[str, float]:
        return {**margin_figures(self.anchors), **super().monitor()}


class Client(singleset.Client):
    hyper: Hyper
    anchors: Tensor  # A [C, D], received with every broadcast
    margin: Tensor  # d* of this round

    def __init__(self, model: Net, data: Samples, hyper: Hyper, seed: int, device: str) -> None:
        super().__init__(model, data, hyper, seed, device)
        check_head(model, hyper)
        self.prototypes, self.known = table_of({}, model)
        self.seen = SeenFeatures(model)
        # P_i of the last round in which this device took part.
        self.own = torch.zeros(0, model.embedding_size, device=torch_device_of(model))

    def receive(self, payload: Payload) -> None:
        demand_arrays(payload, table_specs(self.model, "anchors"))
        self.anchors = payload["anchors"].detach()
        self.prototypes, self.known = table_of(payload, self.model)

    def run(self, ask: Ask) -> Payload:
        self.margin = client_margin(self.anchors, self.own, self.hyper.margin)
        self.seen.clear()
        train(self.model, self.data, self.objective, self.hyper, self.generator(ask.phase))
        means, counts = self.own_prototypes()
        self.own = means[counts > 0]  # [C_i, D]
        return sent_means(means, counts, self.hyper.least_samples, self.number)

    def objective(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss of eq. 9."""
        hyper, z = self.hyper, self.model.embed(x)  # [B, D]
        if hyper.proto_source == "training":
            self.seen.add(z.detach(), y)
        loss = F.cross_entropy(self.model.head(z), y)
        if weight := hyper.weight_of_regularisation():
            loss = loss + weight * self.regularisation(z, y)
        if hyper.lambda2:
            loss = loss + hyper.lambda2 * self.contrast(z, y)
        if hyper.lambda3:
            calibration = classifier_calibration(self.model.head, self.anchors, bias=hyper.cc_bias)
            loss = loss + hyper.lambda3 * calibration
        return loss

    def regularisation(self, z: Tensor, y: Tensor) -> Tensor:
        if self.hyper.regularisation == "samples":
            return anchor_mse(z, y, self.anchors)
        return anchor_distance(*batch_prototypes(z, y, self.model.classes), self.anchors)

    def contrast(self, z: Tensor, y: Tensor) -> Tensor:
        rows, labels = (z, y) if self.hyper.mcl_on == "samples" else batch_prototypes(z, y, len(self.anchors))
        return margin_contrast(rows, labels, self.anchors, self.margin)

    def own_prototypes(self) -> ClassMeans:
        """Return the device's own prototypes P_i [C, D] and its numbers of samples |D_i,c| [C]."""
        if self.hyper.proto_source == "eval":
            return class_means(embed(self.model, self.data.x), self.data.y, self.model.classes)
        means = self.seen.means().to(self.anchors.dtype)
        return means, self.seen.counts // self.hyper.epochs  # Each epoch has counted each sample once.

    def rule(self) -> nn.Module:
        return both_ways(self.model.head, self.prototypes, self.known)[self.hyper.inference]

    def other_rules(self) -> Mapping[str, nn.Module]:
        if not self.hyper.send_prototypes:
            return {}
        both = both_ways(self.model.head, self.prototypes, self.known)
        return {name: rule for name, rule in both.items() if name != self.hyper.inference}

    def state(self) -> Payload:
        return {**super().state(), "own": self.own}

    def restore(self, state: Payload) -> None:
        super().restore(state)
        self.own = state["own"].to(torch_device_of(self.model))


def cost(sizes: Sizes) -> Cost:
    """Return the cost; the paper counts only the anchors that are received and the prototypes that are sent."""
    table = sizes.C * sizes.D
    held = eight_bytes(sizes.held)
    up = {"prototypes": sizes.held * sizes.D, "labels": held, "counts": held}
    known = {"prototypes": sizes.rows * sizes.D, "labels": eight_bytes(sizes.rows)}
    return Cost(up, {"anchors": table, **({} if sizes.first_round else known)})


def variant(hyper: Hyper) -> Method:
    """Return the method under these settings. Eq. 3 as printed is no mean, so then no phase is averaged."""
    rows = ROWS_BY.get(hyper.aggregation)
    return replace(METHOD, averaged={"train": Averaged(rows=rows)} if rows else {})


METHOD = Method(
    "Zhou et al., AAAI 2025", Hyper, Server, Client,
    reports="personal", alike="embedding", other_rules=("prototype", "classifier"),
    private="the model and its last prototypes", arrays=(*HELD_ROWS, "anchors"), cost=cost,
    averaged={"train": Averaged(rows="counts")}, variant=variant,
)  # fmt: skip
