"""RUCR (Huang et al., IEEE TIFS 2024): devices learn towards unified prototypes, and at the end retrain the head.

P_c <- mean of the received model's features of class c over the round's devices; r_c: share of c in their samples
l = CE + mu CE([c on the device] cos(z, P_c) / tau + [c = y] log r_y, y)   logit 0 for a class that the device lacks
w <- sum_i (N_i / N) w_i

In the last `rectify_rounds` a device then trains its head once more, on `virtual` features of each class c:
v = lam D_c + (1 - lam) unit(f),   lam ~ U(lam_low, lam_high),   D_c <- mean of unit class means, by examples
f is a feature of one of the device's own samples, computed by the received model. lam has two decimals. The retrained
heads are averaged with the same weights N_i / N as models.

A round has two exchanges, "means" and "train". Differences from the authors' code, or between the public codes:
  head   the average of the retrained heads predicts in the last evaluation. The model with which devices continue
         keeps its own head. write_head puts the retrained head into the model (FedPall's copy).
  D_c    is computed from the last means of every device that ever took part. The authors' code asks all devices in
         the last rounds, and begins one round earlier.
  f      each feature is used at most once if there are at least `virtual` features. Otherwise features are drawn with
         repetition. In this case, the authors' code stops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protofleet.methods import fedavg
from protofleet.methods.contract.base import Ask, Method, Payload, Reply, Round, Samples, ServerHalf
from protofleet.methods.contract.cost import Cost, Sizes, eight_bytes, parameters
from protofleet.methods.contract.received import demand_arrays
from protofleet.methods.maths.geometry import unit
from protofleet.methods.maths.means import ClassMeans, class_means, merge_class_means
from protofleet.methods.nets.base import Net, frozen
from protofleet.methods.parts.averaging import weighted_mean
from protofleet.methods.parts.flat import flat_wants, flat_weights, load_flat
from protofleet.methods.parts.local import LocalHyper, demand, embed, train
from protofleet.methods.parts.prototypes import (
    HELD_ROWS,
    LARGEST_NUMBER,
    class_means_in,
    held_row_wants,
    row_specs,
    table_of,
)
from protofleet.methods.parts.small_classes import CountsIfLimited, LeastSamplesHyper, sent_means
from protofleet.methods.parts.state import names_from_tensor, names_to_tensor, snapshot
from protofleet.methods.parts.weights import WEIGHTS, load_weights, torch_device_of, weights_of
from protofleet.protocol.settings.bounds import (
    LARGEST_COUNT,
    Batch,
    Epochs,
    Rate,
    Share,
    Temperature,
    Weight,
    Within,
)


@dataclass(frozen=True)
class Hyper(LeastSamplesHyper):
    mu: Weight = 0.15
    """Weight of the loss towards the unified prototypes; 0 means off."""
    tau: Temperature = 0.9
    """Temperature of the cosines with the prototypes."""
    rectify_rounds: Annotated[int, Within(0, LARGEST_COUNT)] = 20
    """Number of rounds at the end in which devices retrain the head; 0 means none."""
    write_head: bool = False
    """If true, the retrained head becomes part of the model, as in FedPall's copy."""
    virtual: Annotated[int, Within(1, LARGEST_COUNT)] = 100
    """Number of virtual features of each class."""
    lam_low: Share = 0.35
    """Lower bound of lambda, the part of the class mean in a virtual feature."""
    lam_high: Share = 0.95
    """Upper bound of lambda, at least `lam_low`."""
    head_epochs: Epochs = 50
    """Number of passes over the virtual features when the head is retrained."""
    head_batch: Batch = 256
    """Number of virtual features in a batch."""
    head_lr: Rate = 0.01
    """Learning rate when the head is retrained."""

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self.lam_low, self.lam_high
        demand("lam_high", high, low <= high, f"between lam_low = {low} and 1")

    @property
    def head(self) -> LocalHyper:
        return LocalHyper(self.head_epochs, self.head_batch, self.head_lr, momentum=0.0, weight_decay=0.0)


class Server(CountsIfLimited, ServerHalf):
    hyper: Hyper

    def __init__(self, model: Net, hyper: Hyper, seed: int) -> None:
        super().__init__(model, hyper, seed)
        self.rectified: nn.Module | None = None
        # Device -> its class means [C, D], scaled to length 1, and its counts [C].
        self.last_means: dict[str, ClassMeans] = {}

    @property
    def rectifies(self) -> bool:
        return self.rounds - self.number < self.hyper.rectify_rounds

    def round(self) -> Round:
        replies = yield Ask("means", weights_of(self.model), held_row_wants(self.model, LARGEST_NUMBER))
        self.count_devices(replies)
        payload = self.unify(replies)
        weights, head = flat_wants(self.model), {}
        if self.rectifies:
            payload |= labelled(*merge_class_means(self.by_device()), "directions", "classes")
            head = flat_wants(self.model.head, "head")
        replies = yield Ask("train", payload, {**weights, **head})
        load_flat(self.model, weighted_mean(replies, weights))
        if head:
            self.rectify(weighted_mean(replies, head))

    def unify(self, replies: Sequence[Reply]) -> dict[str, Tensor]:
        """Return the prototypes P and the shares r of the classes that are present."""
        ordered = sorted(replies, key=lambda reply: reply.device)
        pieces = {reply.device: class_means_in(reply.payload, self.model.classes) for reply in ordered}
        self.last_means |= {device: (unit(means), counts) for device, (means, counts) in pieces.items()}
        means, counts = merge_class_means(pieces.values())
        shares = counts.double() / counts.sum().clamp(min=1)
        return {
            **labelled(means, counts, "prototypes", "labels"),
            "shares": shares[counts > 0].to(means.dtype),
        }

    def by_device(self) -> list[ClassMeans]:
        return [self.last_means[device] for device in sorted(self.last_means)]

    def rectify(self, head: Payload) -> None:
        self.rectified = None if self.hyper.write_head else frozen(self.model.head)
        load_flat(self.model.head if self.rectified is None else self.rectified, head, "head")

    def payload(self) -> Payload:
        head = {} if self.rectified is None else weights_of(self.rectified, "rectified")
        return {**weights_of(self.model), **head}

    def state(self) -> Payload:
        if not self.last_means:
            return snapshot(self.payload())
        means, counts = (torch.stack(parts) for parts in zip(*self.by_device(), strict=True))
        return snapshot(
            {
                **self.payload(),
                "means": means,
                "counts": counts,
                "devices": names_to_tensor(sorted(self.last_means)),
            }
        )

    def restore(self, state: Payload) -> None:
        load_weights(self.model, state)
        self.rectified, self.last_means = rectified_in(state, self.model), {}
        if "devices" in state:
            means, counts = (state[name].to(torch_device_of(self.model)) for name in ("means", "counts"))
            found = zip(names_from_tensor(state["devices"]), means, counts, strict=True)
            self.last_means = {device: (rows, held) for device, rows, held in found}


class Client(fedavg.Client):
    hyper: Hyper

    def __init__(self, model: Net, data: Samples, hyper: Hyper, seed: int, device: str) -> None:
        super().__init__(model, data, hyper, seed, device)
        self.rectified: nn.Module | None = None
        self.prototypes, self.known = table_of({}, model)
        self.shares = self.prototypes.new_zeros(model.classes)  # r_c of the known classes c.
        self.local = data.y.bincount(minlength=model.classes) > 0

    def receive(self, payload: Payload) -> None:
        super().receive(payload)
        self.rectified = rectified_in(payload, self.model)
        demand_unified(payload, self.model)
        self.prototypes, self.known = table_of(payload, self.model)
        self.shares = torch.zeros_like(self.shares)
        if "shares" in payload:
            self.shares[payload["labels"]] = payload["shares"].detach()

    def run(self, ask: Ask) -> Payload:
        z = embed(self.model, self.data.x)  # The model is still the received one.
        if ask.phase == "means":
            means, counts = class_means(z, self.data.y, self.model.classes)
            return sent_means(means, counts, self.hyper.least_samples, self.number)
        train(self.model, self.data, self.objective, self.hyper, self.generator(ask.phase))
        sent = flat_weights(self.model)
        if "directions" not in ask.payload:
            return sent
        return {**sent, **flat_weights(self.rectified_head(z, ask.payload), "head")}

    def objective(self, x: Tensor, y: Tensor) -> Tensor:
        h, z = self.hyper, self.model.embed(x)
        contrast = balanced_contrast(z, y, self.prototypes, self.known, self.shares, self.local, h.tau)
        return F.cross_entropy(self.model.head(z), y) + h.mu * contrast

    def networks(self) -> Sequence[nn.Module]:
        return [self.model, *([] if self.rectified is None else [self.rectified])]

    def rectified_head(self, z: Tensor, payload: Payload) -> nn.Module:
        head = deepcopy(self.model.head)
        found = VirtualFeatures(
            z, payload["directions"], payload["classes"], self.hyper, self.generator("mix")
        )
        train(head, found, lambda v, c: F.cross_entropy(head(v), c), self.hyper.head, self.generator("head"))
        return head

    def rule(self) -> nn.Module:
        return self.model.head if self.rectified is None else self.rectified

    def other_rules(self) -> Mapping[str, nn.Module]:
        return {} if self.rectified is None else {"unrectified": self.model.head}

    def state(self) -> Payload:
        return snapshot(weights_of(self.model))

    def restore(self, state: Payload) -> None:
        load_weights(self.model, state)


class VirtualFeatures:
    """Virtual features in the form of Samples. A device without features has no virtual features."""

    def __init__(
        self, z: Tensor, directions: Tensor, classes: Tensor, hyper: Hyper, generator: torch.Generator
    ) -> None:
        each = hyper.virtual if len(z) else 0
        low, width = hyper.lam_low, hyper.lam_high - hyper.lam_low
        made = [z[:0]]
        for direction in directions.detach():
            rows = chosen(len(z), each, generator)
            u = torch.rand(each, 1, generator=generator, dtype=torch.float64)
            lam = (low + width * u).round(decimals=2).to(z)
            made.append(mixed(lam, direction, z[rows]))
        self.x, self.y = torch.cat(made), classes.repeat_interleave(each)


def chosen(rows: int, count: int, generator: torch.Generator) -> Tensor:
    if rows >= count:
        return torch.randperm(rows, generator=generator)[:count]
    return torch.randint(rows, (count,), generator=generator)


def mixed(lam: Tensor, direction: Tensor, z: Tensor) -> Tensor:
    return lam * direction + (1 - lam) * unit(z)


def balanced_contrast(
    z: Tensor, y: Tensor, prototypes: Tensor, known: Tensor, shares: Tensor, local: Tensor, tau: float
) -> Tensor:
    """Return the contrast loss: a mean over the samples whose class has a prototype."""
    held = known[y]
    z, y = z[held], y[held]
    cosines = unit(z) @ unit(prototypes).T / tau
    own = F.one_hot(y, len(shares)).to(z.dtype)
    scores = cosines.masked_fill(~(local & known), 0.0) + own * shares[y].log().unsqueeze(1)
    return F.cross_entropy(scores, y, reduction="sum") / max(len(y), 1)


def labelled(means: Tensor, counts: Tensor, rows: str, labels: str) -> dict[str, Tensor]:
    held = counts > 0
    return {rows: means[held], labels: held.nonzero().squeeze(1)}


def demand_unified(payload: Payload, model: Net) -> None:
    """Raise WrongArraysError if P, r or the directions differ from the form that `Server.round` sends."""
    rows, directions = row_specs(model), row_specs(model, rows="directions", labels="classes")
    unified = {**rows, "shares": replace(rows["prototypes"], shape=("rows",))}
    for specs in (unified, directions):
        if any(name in payload for name in specs):
            demand_arrays(payload, specs)


def rectified_in(payload: Payload, model: Net) -> nn.Module | None:
    if not any(name.startswith("rectified.") for name in payload):
        return None
    head = frozen(model.head)
    load_weights(head, payload, "rectified")
    return head


def cost(sizes: Sizes) -> Cost:
    """Return the cost.

    The paper leaves out the bytes of labels and of class sizes. In the last evaluation, a device also receives
    the retrained head.
    """
    rows, held, table = sizes.rows * sizes.D, eight_bytes(sizes.held), eight_bytes(sizes.rows)
    up = {"weights": sizes.weights, "prototypes": sizes.held * sizes.D, "labels": held, "counts": held}
    down = {"weights": sizes.weights, "prototypes": rows, "labels": table, "shares": sizes.rows}
    if sizes.last_rounds:
        up |= {"head": parameters(sizes.model.head)}
        down |= {"directions": rows, "classes": table}
    return Cost(up, down)


METHOD = Method(
    "Huang et al., IEEE TIFS 2024", Hyper, Server, Client,
    other_rules=("unrectified",), private="the model, between the two exchanges of a round",
    arrays=(*WEIGHTS, *HELD_ROWS, "shares", "directions", "classes", "head", "rectified"), cost=cost,
    fixed_rounds="devices retrain the head in the last planned rounds",
)  # fmt: skip
