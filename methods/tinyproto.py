"""TinyProto (Lee and Choi, AAAI 2026): FedProto with short rows; the coordinator learns every label distribution.

Device i: minimise CE(f(x), y) + lam * mean over the D dimensions of (z - e_y)^2;   sends N_ic P_ic on the mask of c
Server  : e_c <- a sum_i N_ic P_ic,   a = C / (number of the cohort's samples)        (adaptive scaling, aps)

P_ic is the mean embedding of the device's N_ic samples of class c. Outside of the mask, e_c is 0. Both sides draw the
masks from the seed of the plan. A class without senders keeps its row. A prediction is the nearest e_c over all
dimensions, zeros included. A class that no device has ever held is never predicted. The row of a class of average
size is about its mean, and a larger class has a longer row. Without aps, devices send P_ic, and e_c is their mean.

Privacy: devices state N_ic when they join, because |N_ic P_ic| must be at most N_ic times `largest_feature`. A longer
row, or a row of a class without stated samples, is left out (`rows.refused` in the record of the round).

Differences from the paper or the authors' code:
  a             the paper has 0.00015 for CIFAR-10. Our default does not depend on the number of samples.
  masks         the code draws sets of dimensions that are far apart. Our sets are shifts of one set (maths/masks.py),
                so every dimension in use belongs to equally many classes.
  proto_source  the code takes the features seen in all epochs, each before its step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, TypeAlias, get_args

import torch

from protofleet.methods import fedproto
from protofleet.methods.contract.base import Ask, Method, Payload, Samples, seeded
from protofleet.methods.contract.cost import Cost, Sizes, eight_bytes
from protofleet.methods.maths.masks import owned_dimensions
from protofleet.methods.maths.means import ClassMeans, class_sums, means_of, merge_class_means, scaled
from protofleet.methods.nets.base import Net
from protofleet.methods.parts.local import demand_one_of, embed, train
from protofleet.methods.parts.prototypes import ROWS, has_rows, table_of
from protofleet.methods.parts.small_classes import ClassMeansHyper, sent_rows
from protofleet.methods.parts.stated_counts import StatedCountsServer
from protofleet.protocol.settings.bounds import LARGEST_FACTOR, Batch, Epochs, Weight, Within

Factor: TypeAlias = Annotated[float, Within(0, LARGEST_FACTOR, above=True)]


@dataclass(frozen=True)
class Hyper(ClassMeansHyper):
    epochs: Epochs = 1
    batch: Batch = 32
    lam: Weight = 10.0
    """Weight (lambda) of the distance to the prototypes; 0 means off."""
    ratio: Annotated[float, Within(0, 100, above=True, below=True)] = 10.0
    """Percentage of the dimensions that a class owns; a class owns at least one of C chunks."""
    aps: bool = True
    """If true, prototypes are scaled by numbers of samples (adaptive scaling)."""
    a: Factor | None = None
    """Factor of adaptive scaling; if left out, C / (number of the cohort's samples)."""
    largest_feature: Factor = 1000.0
    """Largest norm of a device's mean embedding of a class; longer rows are left out."""
    inference: fedproto.Inference = "prototype"
    """Prediction, by the nearest global `prototype` or by the device's own `classifier`."""
    proto_source: fedproto.Source = "eval"
    """Source of a device's prototypes, `eval` (a pass after training) or `training` (the features seen in all local
    epochs, each before its step).
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        demand_one_of("inference", self.inference, get_args(fedproto.Inference))
        demand_one_of("proto_source", self.proto_source, get_args(fedproto.Source))

    def chunks(self, classes: int) -> int:
        return max(1, int(classes * self.ratio / 100))

    def width(self, classes: int, size: int) -> int:
        """Return s, the number of dimensions that a class owns."""
        return self.chunks(classes) * (size // classes)


class Server(StatedCountsServer):
    hyper: Hyper

    @property
    def width(self) -> int:
        return self.hyper.width(self.model.classes, self.model.embedding_size)

    @property
    def largest(self) -> float:
        return self.hyper.largest_feature

    @property
    def sums(self) -> bool:
        return self.hyper.aps

    def merge(self, pieces: Iterable[ClassMeans], weights: Sequence[float] | None = None) -> ClassMeans:
        rows, counts = merge_class_means(pieces, weights)
        rows = scaled(rows, counts, self.hyper.a) if self.hyper.aps else rows
        return rows.to(self.prototypes.dtype), counts


class Client(fedproto.Client):
    hyper: Hyper  # type: ignore[assignment]

    def __init__(self, model: Net, data: Samples, hyper: Hyper, seed: int, device: str) -> None:
        super().__init__(model, data, hyper, seed, device)  # type: ignore[arg-type]
        classes, size, generator = model.classes, model.embedding_size, seeded(seed, "masks")
        owned = owned_dimensions(classes, size, hyper.chunks(classes), generator)
        self.owned = owned.to(self.prototypes.device)  # [C, s]

    def receive(self, payload: Payload) -> None:
        if has_rows(payload):
            rows, self.known = table_of(payload, self.model, self.owned.shape[1])
            self.prototypes = torch.zeros_like(self.prototypes).scatter(1, self.owned, rows)

    def run(self, ask: Ask) -> Payload:
        self.seen.clear()
        train(self.model, self.data, self.objective, self.hyper, self.generator(ask.phase))
        sums, counts = self.own_sums()
        rows = (sums if self.hyper.aps else means_of(sums, counts)).gather(1, self.owned)
        return sent_rows(rows.to(self.prototypes.dtype), counts, self.hyper.least_samples, self.number)

    def own_sums(self) -> ClassMeans:
        """Return N_ic P_ic [C, D] in float64, and N_ic [C]."""
        if self.hyper.proto_source == "training":
            return self.seen.sums / self.hyper.epochs, self.seen.counts // self.hyper.epochs
        return class_sums(embed(self.model, self.data.x), self.data.y, self.model.classes)

    def after_last_round(self) -> None:
        """Do nothing, because this method does not have FedProto's setting `final_fit`."""


def misfit_network(hyper: Hyper, model: Net) -> str:
    if (size := model.embedding_size) >= (classes := model.classes):
        return ""
    words = f"but each class needs a number of its own; set {model.size_setting} to at least {classes}"
    return f"the embedding has {size} numbers for {classes} classes, {words}"


def cost_under(hyper: Hyper, sizes: Sizes) -> Cost:
    width = hyper.width(sizes.C, sizes.D)
    up = {"prototypes": sizes.held * width, "labels": eight_bytes(sizes.held)}
    down = {"prototypes": sizes.rows * width, "labels": eight_bytes(sizes.rows)}
    return Cost(up, {} if sizes.first_round else down)


METHOD: Method = Method(
    "arXiv:2507.04327", Hyper, Server, Client,
    reports="personal", needs_counts=True, alike="embedding", other_rules=("prototype", "classifier"),
    private="the model", arrays=ROWS, cost=partial(cost_under, Hyper()), misfit_network=misfit_network,
    variant=lambda hyper: replace(METHOD, cost=partial(cost_under, hyper)),
)  # fmt: skip
