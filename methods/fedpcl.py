"""FedPCL (Tan et al., NeurIPS 2022): devices learn towards class means of all devices, which every device receives.

P_jc = unit(mean of unit(z_j(x)) over device j's samples x of class c);   G_c = unit(mean of P_jc over the devices j)
l = CE over cos(z, G) / tau + (1/K) sum_j CE over cos(z, P_j) / tau

No network is sent, and no head is trained. In round 1, devices only send their rows. If the class of a sample is not
among the rows of a term, the sample is left out of the mean of this term. A device predicts the class of its nearest
own row, so it never predicts a class that it does not hold. The nearest global row is measured too.
Privacy: every device receives the class means of every other device, and learns which classes it holds. The mean of
one sample is the direction of this sample's feature, so classes with fewer than `least_samples` samples are not sent.
Differences from the paper, or between the public codes:
  positions  PFLlib sends the rows of a device in the order in which their labels were first seen, and takes a label
             as the position of its row. Here the mask `held` [K, C] tells the classes of a device's rows.
  absent     G and the sum are over all K devices that ever sent rows, and each of them counts once. The network of a
             device does not change while the device is absent, so its last rows stay right. The rows of a device that
             never returns are kept too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from protofleet.methods import singleset
from protofleet.methods.contract.base import Ask, Method, Payload, Round, Samples, ServerHalf
from protofleet.methods.contract.cost import Cost, Numbers, Sizes, eight_bytes
from protofleet.methods.maths.contrast import contrast_with_sets
from protofleet.methods.maths.geometry import unit
from protofleet.methods.maths.means import average_class_means, class_means
from protofleet.methods.nets.base import Net
from protofleet.methods.parts.last_rows import SETS, LastRows, sets_in
from protofleet.methods.parts.local import embed, train
from protofleet.methods.parts.prototypes import ROWS, class_row_wants, class_rows, has_rows, table_of
from protofleet.methods.parts.rules import nearest_known
from protofleet.methods.parts.small_classes import ClassMeansHyper, DevicesByClass, sent_rows
from protofleet.methods.parts.state import snapshot
from protofleet.protocol.settings.bounds import Temperature

LARGEST = 2.0  # Bound of a number in a row. Rows have length 1, but a codec may round numbers up.


@dataclass(frozen=True)
class Hyper(ClassMeansHyper):
    tau: Temperature = 0.07
    """Temperature of the cosines; the default is usual in contrastive losses, as no value of the paper was found."""


class Server(DevicesByClass, ServerHalf):
    def __init__(self, model: Net, hyper: Hyper, seed: int) -> None:
        super().__init__(model, hyper, seed)
        self.last = LastRows(model)

    def round(self) -> Round:
        wants = class_row_wants(self.model, LARGEST, row_per_example=True)
        replies = yield Ask("train", {**self.payload(), **self.sets()}, wants)
        self.count_devices(replies)
        self.last.take(replies)

    def payload(self) -> Payload:
        tables = [(unit(rows), held.long()) for rows, held in self.last.tables()]
        if not tables:
            return {}
        means, counts = average_class_means(tables)
        return class_rows(unit(means), counts > 0)

    def sets(self) -> Payload:
        """Return the rows of all devices, which a device needs in training but not for its prediction."""
        sent = self.last.sets()
        return {**sent, "sets": unit(sent["sets"])} if len(sent["held"]) else {}

    def state(self) -> Payload:
        return self.last.state()

    def restore(self, state: Payload) -> None:
        self.last.restore(state)


class Client(singleset.Client):
    hyper: Hyper

    def __init__(self, model: Net, data: Samples, hyper: Hyper, seed: int, device: str) -> None:
        super().__init__(model, data, hyper, seed, device)
        self.prototypes, self.known = table_of({}, model)
        self.own, self.held = table_of({}, model)
        self.sets: tuple[Tensor, Tensor] | None = None

    def receive(self, payload: Payload) -> None:
        self.sets = sets_in(payload, self.model)
        if has_rows(payload):
            self.prototypes, self.known = table_of(payload, self.model)

    def run(self, ask: Ask) -> Payload:
        parts = self.model.features, self.model.projector
        if self.sets is not None and any(w.requires_grad for part in parts for w in part.parameters()):
            train(self.model, self.data, self.objective, self.hyper, self.generator(ask.phase))
        z = unit(embed(self.model, self.data.x))
        means, counts = class_means(z, self.data.y, self.model.classes)
        self.own, self.held = unit(means), counts > 0
        return sent_rows(self.own, counts, self.hyper.least_samples, self.number)

    def objective(self, x: Tensor, y: Tensor) -> Tensor:
        assert self.sets is not None
        z, tau, known = self.model.embed(x), self.hyper.tau, self.known
        to_all = contrast_with_sets(z, y, self.prototypes[known], known.unsqueeze(0), tau)
        return to_all.sum() + contrast_with_sets(z, y, *self.sets, tau).mean()

    def embedding(self, x: Tensor) -> Tensor:
        return unit(self.model.embed(x))

    def rule(self) -> nn.Module:
        if self.held.any():
            return nearest_known(self.own, self.held, "cosine")
        return self.nearest_global()

    def other_rules(self) -> Mapping[str, nn.Module]:
        return {"prototype": self.nearest_global()}

    def nearest_global(self) -> nn.Module:
        """Return the rule of the nearest global row, or the untrained head if no row is known."""
        return nearest_known(self.prototypes, self.known, "cosine") if self.known.any() else self.model.head

    def state(self) -> Payload:
        return {**super().state(), **snapshot({"own": self.own, "held": self.held})}

    def restore(self, state: Payload) -> None:
        super().restore(state)
        self.own, self.held = state["own"].to(self.own.device), state["held"].to(self.own.device)


def cost(sizes: Sizes) -> Cost:
    """Return the cost, with `least_samples` = 1. The mask has a byte for each device and class."""
    up = {"prototypes": sizes.held * sizes.D, "labels": eight_bytes(sizes.held)}
    marks = sizes.clients * sizes.C
    down = {
        "prototypes": sizes.rows * sizes.D, "labels": eight_bytes(sizes.rows),
        "sets": sizes.rows_of_all * sizes.D, "held": Numbers(marks, marks),
    }  # fmt: skip
    return Cost(up, {} if sizes.first_round else down)


METHOD = Method(
    "arXiv:2209.10083", Hyper, Server, Client,
    reports="personal", alike="embedding", other_rules=("prototype",), private="the model and its own rows",
    arrays=(*ROWS, *SETS), cost=cost,
)  # fmt: skip
