"""FedHP (Fonio et al., ESANN 2024): prototypes are parameters, kept apart by anchors spread over a sphere.

Server, once : anchors <- argmin L_U(P), |P_j| = 1;  pi_g <- anchors              (eq. 3)
Client i     : minimise L_D(theta, pi_i) + lam * L_H(pi_i), from pi_i = pi_g      (eqs. 1, 2, 4)
Server       : pi_g^j <- sum_i w_ij pi_i^j / sum_i w_ij,  w_ij = N_i^j / N_i      (eq. 5, scaled)

theta is everything except the head, and never leaves the device. The prediction is the class of the nearest
prototype. After the last broadcast every device fits once more (`settle`); final_fit=false leaves this out.

Choices where the paper states nothing, or cannot be followed:
  eq. 5        the weights do not sum to 1: with C equal classes, each round divides the lengths by C. We scale the
               weights to a sum of 1, and keep pi_g^j if no device holds j. "counts" has w_ij = N_i^j. "paper" is
               eq. 5 exactly, which gives zero for a class that no device holds. pi_g is not scaled to length 1.
  eq. 4        is a sum over classes. lh_reduction="mean" is the mean of the authors' library, C times smaller.
  eq. 3        the start (uniform in [0, 1)), 1000 steps of SGD at 0.1, momentum and decay are as in the library.
  optimizers   SGD for theta and Adam for pi_i keep their state over rounds in which the device takes no part, as in
               the library. reset_adam resets the moments of Adam when pi_g replaces the device's prototypes. `clip`
               limits the gradient of theta only.
  N_i^j        is the number of samples of class j on device i, and N_i is the sum over all classes. A device states
               these numbers once, when it joins.
  anchors      all devices of a cohort get the same broadcast. It contains the anchors if a device of the cohort
               does not have them yet. The broadcast of the last evaluation always contains them. A device that has
               lost its state sends "lacks" and trains without L_H in that round. It gets the anchors in the next
               round for which it is selected. A mean of several devices has no "lacks", so the next broadcast always
               contains the anchors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Annotated, Literal, get_args

import torch
from torch import Tensor, nn

from protofleet.methods import singleset
from protofleet.methods.contract.averages import Averaged, Weighing
from protofleet.methods.contract.base import Ask, Method, Payload, Reply, Round, Samples, ServerHalf, seeded
from protofleet.methods.contract.cost import Cost, Sizes
from protofleet.methods.contract.received import demand_arrays
from protofleet.methods.contract.wants import TensorSpec
from protofleet.methods.maths.means import ClassMeans
from protofleet.methods.nets.base import Net
from protofleet.methods.parts.hyperspheres import (
    aggregate,
    aggregate_as_printed,
    cosine_distance,
    distance_cross_entropy,
    spread,
)
from protofleet.methods.parts.local import demand_one_of, sgd, train
from protofleet.methods.parts.optimizers import Adam
from protofleet.methods.parts.prototypes import (
    LARGEST_NUMBER,
    class_means_in,
    margin_figures,
    table_specs,
)
from protofleet.methods.parts.rules import Nearest
from protofleet.methods.parts.small_classes import CountsIfLimited, LeastSamplesHyper, sent_classes
from protofleet.methods.parts.state import names_from_tensor, names_to_tensor, snapshot
from protofleet.methods.parts.weights import torch_device_of
from protofleet.protocol.settings.bounds import LARGEST_COUNT, Momentum, Rate, Weight, Within
from protofleet.protocol.settings.reader import SettingsError

Aggregation = Literal["normalised", "counts", "paper"]
Reduction = Literal["sum", "mean"]

AGGREGATE: Mapping[str, Callable[[Iterable[ClassMeans], Tensor], Tensor]] = {
    "normalised": aggregate,
    "counts": partial(aggregate, by_counts=True),
    "paper": aggregate_as_printed,
}
ROWS_BY: Mapping[str, Weighing] = {"normalised": "shares", "counts": "counts"}
# Largest number of multiplications for the first anchors. One core needs about an hour for them.
MOST_WORK = 10**13


@dataclass(frozen=True)
class Hyper(LeastSamplesHyper):
    weight_decay: Weight = 1e-4
    lam: Weight = 0.1
    """Weight (lambda) of the loss L_H that keeps the prototypes near the anchors; 0 means off."""
    proto_lr: Rate = 0.005
    """Learning rate of Adam for the prototypes."""
    lh_reduction: Reduction = "sum"
    """Reduction of L_H over the classes, `sum` (eq. 4) or `mean` (the authors' library)."""
    aggregation: Aggregation = "normalised"
    """Weights of the devices' prototypes, `normalised` (eq. 5, scaled to sum 1), `counts` (numbers of
    samples) or `paper` (eq. 5 as printed).
    """
    final_fit: bool = True
    """If true, every device fits once more to its own data after the last broadcast, and is measured with the
    result.
    """
    reset_adam: bool = False
    """If true, the moments of Adam are reset when new prototypes come."""
    init_steps: Annotated[int, Within(0, LARGEST_COUNT)] = 1000
    """Number of SGD steps that spread the anchors; 0 leaves them as they are drawn."""
    init_lr: Rate = 0.1
    """Learning rate of SGD for the anchors."""
    init_momentum: Momentum = 0.9
    """Momentum of SGD for the anchors; 0 means none."""
    init_weight_decay: Weight = 1e-4
    """Weight decay of SGD for the anchors; 0 means none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        demand_one_of("lh_reduction", self.lh_reduction, get_args(Reduction))
        demand_one_of("aggregation", self.aggregation, get_args(Aggregation))


class Server(CountsIfLimited, ServerHalf):
    hyper: Hyper

    def __init__(self, model: Net, hyper: Hyper, seed: int) -> None:
        super().__init__(model, hyper, seed)
        self.anchors = self.first_anchors()  # [C, D]
        self.prototypes = self.anchors  # pi_g [C, D]
        self.holders: frozenset[str] = frozenset()  # Devices that have the anchors.

    def first_anchors(self) -> Tensor:
        h, generator = self.hyper, seeded(self.seed, "server", "anchors")
        demand_affordable(h.init_steps, self.model.classes, self.model.embedding_size)
        start = torch.rand(self.model.classes, self.model.embedding_size, generator=generator)
        anchors = spread(start, h.init_steps, h.init_lr, h.init_momentum, h.init_weight_decay)
        return anchors.to(torch_device_of(self.model))

    def round(self) -> Round:
        replies = yield Ask("train", self.payload_for_cohort(), self.wants())
        self.count_devices(replies)
        pieces = (self.piece(reply) for reply in replies)
        self.prototypes = AGGREGATE[self.hyper.aggregation](pieces, self.prototypes)
        if any(is_mean(reply) for reply in replies):  # A mean does not say which devices lack the anchors.
            self.holders = frozenset()
            return
        lacking = {r.device for r in replies if "lacks" in r.payload}
        self.holders = (self.holders | {r.device for r in replies}) - lacking

    def payload(self) -> Payload:
        return {"prototypes": self.prototypes, "anchors": self.anchors}

    def payload_for_cohort(self) -> Payload:
        """Return the prototypes, and also the anchors if a device of the cohort lacks them."""
        known = bool(self.cohort) and self.holders.issuperset(m.device for m in self.cohort)
        return {"prototypes": self.prototypes} if known else self.payload()

    def wants(self) -> Mapping[str, TensorSpec]:
        shape = self.model.classes, self.model.embedding_size
        dtype = str(self.prototypes.dtype).removeprefix("torch.")
        return {
            "prototypes": TensorSpec(shape, dtype, low=-LARGEST_NUMBER, high=LARGEST_NUMBER),
            "lacks": TensorSpec((1,), "bool", optional=True),
        }

    def piece(self, reply: Reply) -> ClassMeans:
        """Return a table [C, D] with the numbers of samples N_i^j [C]."""
        if is_mean(reply):
            return class_means_in(reply.payload, self.model.classes)
        return reply.payload["prototypes"], self.counts_of(reply.device)

    def counts_of(self, device: str) -> Tensor:
        """Return N_i^j [C], as the device stated them when it joined."""
        counts = next((m.counts for m in self.cohort if m.device == device), ())
        if len(counts) != self.model.classes:
            raise ValueError(
                f"{device} has stated counts of {len(counts)} classes, but FedHP needs all {self.model.classes} "
                "classes; a device states its counts when it joins"
            )
        return torch.tensor(counts, dtype=torch.int64)

    def labels_of(self, reply: Reply) -> Tensor:
        if is_mean(reply):
            return reply.payload["labels"]
        return (self.counts_of(reply.device) >= self.hyper.least_samples).nonzero().squeeze(1)

    def state(self) -> Payload:
        return {**self.payload(), "holders": names_to_tensor(sorted(self.holders))}

    def restore(self, state: Payload) -> None:
        torch_device = torch_device_of(self.model)
        self.prototypes = state["prototypes"].to(torch_device)
        self.anchors = state["anchors"].to(torch_device)
        self.holders = frozenset(names_from_tensor(state["holders"]))

    def monitor(self) -> Mapping[str, float]:
        return {**margin_figures(self.prototypes), **super().monitor()}


def is_mean(reply: Reply) -> bool:
    """Return whether the reply stands for the mean of several devices; only then do its rows have labels."""
    return "labels" in reply.payload


def demand_affordable(steps: int, classes: int, size: int) -> None:
    """Raise SettingsError if the first anchors would take too much work.

    The work of each step is quadratic in the number of classes. The check is made when the run is set up,
    before the work starts.
    """
    each = classes * classes * size
    if steps * each > MOST_WORK:
        raise SettingsError(
            f"init_steps is {steps}: for {classes} classes of {size} numbers this takes {steps * each:.1e} "
            f"multiplications, but at most {MOST_WORK:.0e} are allowed; set at most {MOST_WORK // each} steps, "
            "or use shorter embeddings"
        )


class Client(singleset.Client):
    hyper: Hyper

    def __init__(self, model: Net, data: Samples, hyper: Hyper, seed: int, device: str) -> None:
        super().__init__(model, data, hyper, seed, device)
        first = torch.zeros(model.classes, model.embedding_size, device=torch_device_of(model))
        self.prototypes = nn.Parameter(first)  # pi_i [C, D]
        self.anchors: Tensor | None = None
        theta = chain(model.features.parameters(), model.projector.parameters())
        self.sgd = sgd(theta, hyper)
        self.adam = Adam([self.prototypes], lr=hyper.proto_lr)

    @torch.no_grad()
    def receive(self, payload: Payload) -> None:
        anchors = ["anchors"] if "anchors" in payload else []
        demand_arrays(payload, table_specs(self.model, "prototypes", *anchors))
        self.anchors = payload.get("anchors", self.anchors)
        self.prototypes.copy_(payload["prototypes"])
        if self.hyper.reset_adam:
            self.adam.forget()

    def run(self, ask: Ask) -> Payload:
        received = self.prototypes.detach().clone()
        self.fit(ask.phase)
        sent = {"prototypes": self.without_small_classes(received)}
        return sent if self.anchors is not None else {**sent, "lacks": torch.ones(1, dtype=torch.bool)}

    def without_small_classes(self, received: Tensor) -> Tensor:
        """Return the prototypes [C, D], with the received rows of the classes of which too few samples are here.

        A class without any sample here is sent as before, because only samples of other classes have moved its row.
        """
        counts = self.data.y.bincount(minlength=self.model.classes)
        small = (counts > 0) & ~sent_classes(counts, self.hyper.least_samples, self.number)
        return torch.where(small.unsqueeze(1), received, self.prototypes.detach())

    def after_last_round(self) -> None:
        if self.hyper.final_fit:
            self.fit("settle")

    def fit(self, purpose: str) -> None:
        both, generator = [self.sgd, self.adam], self.generator(purpose)
        train(self.model, self.data, self.objective, self.hyper, generator, optimizers=both)

    def objective(self, x: Tensor, y: Tensor) -> Tensor:
        loss = distance_cross_entropy(self.model.embed(x), y, self.prototypes)
        if self.anchors is None:
            return loss
        drift = cosine_distance(self.anchors, self.prototypes, reduction=self.hyper.lh_reduction)
        return loss + self.hyper.lam * drift

    def rule(self) -> nn.Module:
        every = torch.arange(self.model.classes, device=self.prototypes.device)
        return Nearest(self.prototypes, every, self.model.classes, "euclidean")

    def state(self) -> Payload:
        anchors = {} if self.anchors is None else {"anchors": self.anchors}
        own = {"prototypes": self.prototypes, **anchors}
        return {**super().state(), **snapshot(own), **self.sgd.state("sgd"), **self.adam.state("adam")}

    def restore(self, state: Payload) -> None:
        super().restore(state)
        with torch.no_grad():
            self.prototypes.copy_(state["prototypes"])
        self.anchors = state["anchors"].to(self.prototypes.device) if "anchors" in state else None
        self.sgd.restore(state, "sgd")
        self.adam.restore(state, "adam")


def cost(sizes: Sizes) -> Cost:
    """Return the cost; `first_round` is the device's own first round, in which it gets the anchors."""
    table = sizes.C * sizes.D
    anchors = {"anchors": table} if sizes.first_round else {}
    return Cost(up={"prototypes": table}, down={"prototypes": table, **anchors})


def averaged(hyper: Hyper) -> Mapping[str, Averaged]:
    """Return the averaged phase; eq. 5 as printed is no mean, so then no phase is averaged."""
    rows = ROWS_BY.get(hyper.aggregation)
    least, single = hyper.least_samples, ("lacks", "holders")
    return {"train": Averaged(rows=rows, table=True, least=least, single=single)} if rows else {}


def variant(hyper: Hyper) -> Method:
    """Return the method under these settings."""
    return replace(METHOD, averaged=averaged(hyper))


METHOD = Method(
    "Fonio et al., ESANN 2024", Hyper, Server, Client,
    reports="personal", needs_counts=True, alike="embedding",
    private="the network below the prototypes, and its optimizer",
    arrays=("prototypes", "anchors", "lacks"), averaged=averaged(Hyper()), cost=cost, variant=variant,
)  # fmt: skip
