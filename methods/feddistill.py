"""FedDistill (Jeong et al., 2018: federated distillation): devices exchange mean logits, a vector for each class.

l = CE(f(x), y) + lam CE(f(x), softmax(t_y))                                    (alg. 1, their regulariser)
t_c <- mean of the devices' mean logits of class c; only devices with samples of class c count

A device takes its means over the batches of all its local epochs, with the logits before the step on each batch. With
proto_source = "eval", it takes the means in a separate pass after training. If the server has no t_c for the class of
a sample, this sample is left out of the mean in the second term. Nothing else is shared, so the devices may have
any networks. A device sends a count of samples with each mean. t_c does not need the counts, but with them the server
can refuse a device that counts more samples than it has. HtFLlib uses t_y itself as the target (raw_targets); that
loss has no lower bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch.nn.functional as F
from torch import Tensor

from protofleet.methods import singleset
from protofleet.methods.contract.averages import Averaged
from protofleet.methods.contract.base import Ask, Method, Payload, Reply, Samples
from protofleet.methods.contract.cost import Cost, Sizes, eight_bytes
from protofleet.methods.maths.means import ClassMeans, class_means
from protofleet.methods.nets.base import Net
from protofleet.methods.parts.local import demand_one_of, in_batches, train
from protofleet.methods.parts.prototypes import HELD_ROWS, SeenFeatures, has_rows, table_of
from protofleet.methods.parts.small_classes import CountsIfLimited, LeastSamplesHyper, sent_means
from protofleet.methods.parts.tables import TableServer
from protofleet.protocol.settings.bounds import Weight

Source = Literal["training", "eval"]


@dataclass(frozen=True)
class Hyper(LeastSamplesHyper):
    lam: Weight = 1.0
    """Weight (lambda) of the distillation from the mean logits; FedSA's script uses 0.1, and 0 means off."""
    proto_source: Source = "training"
    """Source of a device's mean logits, `training` (all batches of the local epochs, each before its step) or
    `eval` (a pass after training).
    """
    raw_targets: bool = False
    """If true, the mean logits themselves are the targets, as in HtFLlib, and not their softmax."""

    def __post_init__(self) -> None:
        super().__post_init__()
        demand_one_of("proto_source", self.proto_source, get_args(Source))


class Server(CountsIfLimited, TableServer):
    @property
    def width(self) -> int:
        return self.model.classes

    def learn(self, replies: Sequence[Reply]) -> None:
        self.count_devices(replies)
        super().learn(replies)


class Client(singleset.Client):
    hyper: Hyper

    def __init__(self, model: Net, data: Samples, hyper: Hyper, seed: int, device: str) -> None:
        super().__init__(model, data, hyper, seed, device)
        self.targets, self.known = table_of({}, model, model.classes)
        self.seen = SeenFeatures(model, model.classes)

    def receive(self, payload: Payload) -> None:
        if has_rows(payload):
            self.targets, self.known = table_of(payload, self.model, self.model.classes)

    def run(self, ask: Ask) -> Payload:
        self.seen.clear()
        train(self.model, self.data, self.objective, self.hyper, self.generator(ask.phase))
        return sent_means(*self.mean_logits(), self.hyper.least_samples, self.number)

    def objective(self, x: Tensor, y: Tensor) -> Tensor:
        logits = self.model(x)
        self.seen.add(logits.detach(), y)
        return F.cross_entropy(logits, y) + self.hyper.lam * self.distillation(logits, y)

    def embedding(self, x: Tensor) -> Tensor:
        """Return the scores [B, C], because the prototypes of this method are mean scores, not mean embeddings.

        The embeddings of different devices may have different sizes.
        """
        scores: Tensor = self.model(x)
        return scores

    def distillation(self, logits: Tensor, y: Tensor) -> Tensor:
        held = self.known[y]
        rows = self.targets[y[held]]
        targets = rows if self.hyper.raw_targets else rows.softmax(dim=1)
        terms = -(targets * logits[held].log_softmax(dim=1)).sum(dim=1)
        return terms.sum() / max(len(terms), 1)

    def mean_logits(self) -> ClassMeans:
        if self.hyper.proto_source == "eval":
            logits = in_batches(self.model, self.model, self.data.x)
            return class_means(logits, self.data.y, self.model.classes)
        return self.seen.means().to(self.targets.dtype), self.seen.counts // self.hyper.epochs


def cost(sizes: Sizes) -> Cost:
    """Return the cost. Labels and counts are sent too, and each of them is one number."""
    held = eight_bytes(sizes.held)
    up = {"prototypes": sizes.held * sizes.C, "labels": held, "counts": held}
    down = {"prototypes": sizes.rows * sizes.C, "labels": eight_bytes(sizes.rows)}
    return Cost(up, {} if sizes.first_round else down)


METHOD = Method(
    "arXiv:1811.11479", Hyper, Server, Client,
    reports="personal", alike="nothing", private="the model", arrays=HELD_ROWS,
    averaged={"train": Averaged(rows="devices")}, buffered=True, cost=cost,
)  # fmt: skip
