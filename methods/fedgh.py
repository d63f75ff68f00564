"""FedGH (Yi et al., ACM MM 2023): devices have networks of their own, and a server trains their head on class means.

Device i: w_i <- SGD on CE(h(f_i(x)), y), from the received head h = H; then P_ic <- mean of f_i(x) of its class c
Server  : H <- SGD on the mean of CE(H(P_ic), c) over all rows P_ic

The device trains its whole network, but sends only a row for each class that it holds. The rows are computed after
training, in evaluation mode. Each row counts once. A device is measured with the received head on its own f_i.
Differences between the text and the public codes:
  server_lr  0.01 and 100 epochs in HtFLlib; PFLlib has 1 and 1 epoch.
  replay     in a round, the papers' server learns only from the rows of this round's devices. If none of them holds a
             class, every row lowers the scores of this class. By default, our server also learns from the last rows
             of all other devices. The network of a device does not change while the device is absent, so its rows
             stay right. The rows of a device that never returns are kept too.

The coordinator gets class means, and thus learns which classes a device holds. The mean of one sample is the feature
of this sample, so a device sends no mean of a class with fewer than `least_samples` samples. The papers send all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch.nn.functional as F

from protofleet.methods.contract.base import Ask, Method, Payload, Reply, Round
from protofleet.methods.contract.cost import Cost, Sizes, eight_bytes, parameters
from protofleet.methods.maths.means import class_means
from protofleet.methods.nets.base import Net
from protofleet.methods.parts.last_rows import LastRows
from protofleet.methods.parts.local import LocalHyper, embed, train
from protofleet.methods.parts.prototypes import LARGEST_NUMBER, ROWS, class_row_wants
from protofleet.methods.parts.shared import SharedHead, SharingClient, SharingServer
from protofleet.methods.parts.small_classes import ClassMeansHyper, DevicesByClass, sent_rows
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import WEIGHTS, load_weights, weights_of
from protofleet.protocol.settings.bounds import Batch, Epochs, Rate


@dataclass(frozen=True)
class Hyper(ClassMeansHyper):
    server_epochs: Epochs = 100
    """Number of passes of the server over the rows; PFLlib has 1."""
    server_lr: Rate = 0.01
    """Learning rate of SGD on the server; PFLlib has 1."""
    server_batch: Batch = 10
    """Number of rows in a batch on the server."""
    replay: bool = True
    """If true, the server also learns from the last rows of devices that take no part in the round."""

    @property
    def server(self) -> LocalHyper:
        return LocalHyper(
            self.server_epochs, self.server_batch, self.server_lr, momentum=0.0, weight_decay=0.0
        )


class Server(DevicesByClass, SharedHead, SharingServer):
    hyper: Hyper

    def __init__(self, model: Net, hyper: Hyper, seed: int) -> None:
        super().__init__(model, hyper, seed)
        self.last = LastRows(model)

    def round(self) -> Round:
        wants = class_row_wants(self.model, LARGEST_NUMBER, row_per_example=True)
        replies = yield Ask("train", self.payload(), wants)
        self.count_devices(replies)
        self.learn(replies)

    def learn(self, replies: Sequence[Reply]) -> None:
        last = self.last if self.hyper.replay else LastRows(self.model)
        last.take(replies)
        rows, head, before = last.rows(), self.model.head, snapshot(weights_of(self.model.head))
        train(head, rows, lambda x, y: F.cross_entropy(head(x), y), self.hyper.server, self.generator("head"))
        # With rows at their bounds, a deeper head may become infinite. No device could use such a head.
        if not all(bool(value.isfinite().all()) for value in head.state_dict().values()):
            load_weights(head, before)

    def state(self) -> Payload:
        return {**super().state(), **self.last.state()}

    def restore(self, state: Payload) -> None:
        super().restore(state)
        self.last.restore(state)


class Client(SharedHead, SharingClient):
    hyper: Hyper

    def run(self, ask: Ask) -> Payload:
        self.learn(ask.phase)
        means, counts = class_means(embed(self.model, self.data.x), self.data.y, self.model.classes)
        return sent_rows(means, counts, self.hyper.least_samples, self.number)


def cost(sizes: Sizes) -> Cost:
    """Return the cost, with `least_samples` = 1. The paper leaves out the labels."""
    up = {"prototypes": sizes.held * sizes.D, "labels": eight_bytes(sizes.held)}
    return Cost(up, {"weights": parameters(sizes.model.head)})


METHOD = Method(
    "arXiv:2303.13137", Hyper, Server, Client,
    reports="personal", alike="head", private="the network below the head", arrays=(*WEIGHTS, *ROWS), cost=cost,
    calmer=("lr", "server_lr"),
)  # fmt: skip
