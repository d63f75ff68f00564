"""FedGA (Zhang et al., CVPR 2023, there FedDG-GA): FedAvg, where a device has a larger weight if averaging harms it.

gap_i = after_i - before_i    after_i measures the averaged model, and before_i measures device i's own trained model
a_i  <- a_i - (gap_i / max_j |gap_j|) step_t / K       for accuracies; for losses, + instead of -          ("gap")
step_t = step (1 - (t - 1) / T)                        t, from 1: the round of the gap; T: the run's rounds
w    <- sum_i a_i w_i / sum_i a_i                      over the participants; a_i in place of N_i / N

after_i and before_i are accuracies or losses on the validation data of device i. Weights stay between 0 and 1, and
the sum of the K weights that change stays the same. The first weight of a device is 1 / (devices known), and the
weights of the other devices become smaller so that the sum stays the same. If all gaps are 0, no weight changes. A
device without validation samples keeps its weight.

With when = "next", a device measures the averaged model when this model arrives in the next round. So a device sends
only two more numbers. The server first changes the weights of the devices that took part in both rounds, and then
averages the models of this round. With when = "phase", a device measures the averaged model at once, in an additional
phase in which this model is sent. If all devices take part in every round, both settings give the same models.

In the authors' code, the first step is one round earlier than in the paper. MarsFL's copy of the code has the
opposite sign.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from typing import Final, Literal, get_args

import torch
import torch.nn.functional as F

from protofleet.methods import fedavg
from protofleet.methods.contract.base import Ask, Method, Payload, Reply, Round, Samples
from protofleet.methods.contract.cost import Cost, Sizes
from protofleet.methods.contract.wants import TensorSpec
from protofleet.methods.nets.base import Net
from protofleet.methods.parts.averaging import weighted_mean
from protofleet.methods.parts.local import LocalHyper, demand_one_of, in_batches
from protofleet.methods.parts.state import names_from_tensor, names_to_tensor
from protofleet.methods.parts.weights import WEIGHTS, load_weights, weight_wants
from protofleet.protocol.settings.bounds import LARGEST_FACTOR, Share

Gap = Literal["accuracy", "loss"]
When = Literal["next", "phase"]

# If averaging lowers a device's accuracy or raises a device's loss, the weight of the device must increase.
SIGN: Final[Mapping[str, float]] = {"accuracy": -1.0, "loss": 1.0}
HIGHEST: Final[Mapping[str, float]] = {"accuracy": 1.0, "loss": LARGEST_FACTOR}


@dataclass(frozen=True)
class Hyper(LocalHyper):
    gap: Gap = "accuracy"
    """Measure of the gap between the averaged and the trained model on validation samples, `accuracy` or `loss`."""
    when: When = "next"
    """Time at which the averaged model is measured, `next` (in the next round) or `phase` (at once, in a phase of its
    own).
    """
    step: Share = 0.2
    """Largest step of the weights in the first round; the step falls linearly over the rounds; 0 keeps the weights
    equal.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        demand_one_of("gap", self.gap, get_args(Gap))
        demand_one_of("when", self.when, get_args(When))


class Server(fedavg.Server):
    hyper: Hyper

    def __init__(self, model: Net, hyper: Hyper, seed: int) -> None:
        super().__init__(model, hyper, seed)
        self.shares: dict[str, float] = {}  # Device -> its weight, `a` in the paper.
        self.last: list[str] = []  # Devices that took part in the last round.

    def round(self) -> Round:
        models = weight_wants(self.model)
        at_once = self.hyper.when == "phase"
        replies = yield Ask("train", self.payload(), models if at_once else {**models, **self.wants()})
        present = sorted(reply.device for reply in replies)
        self.shares = with_room_for(self.shares, present)
        if not at_once:
            self.move([reply for reply in replies if reply.device in self.last], self.number - 1)
        load_weights(self.model, weighted_mean(replies, models, self.shares))
        self.last = present
        if at_once:
            measured = yield Ask("measure", self.payload(), self.wants())
            self.move([reply for reply in measured if reply.device in present], self.number)

    def wants(self) -> Mapping[str, TensorSpec]:
        dtype = str(next(self.model.parameters()).dtype).removeprefix("torch.")
        high = HIGHEST[self.hyper.gap]
        return {"validation": TensorSpec((2,), dtype, low=0.0, high=high, optional=True)}

    def move(self, replies: Sequence[Reply], number: int) -> None:
        """Change the devices' weights by the gaps that the devices measured in round `number`."""
        came = {r.device: r.payload["validation"].tolist() for r in replies if "validation" in r.payload}
        gaps = {device: after - before for device, (before, after) in sorted(came.items())}
        step = self.hyper.step * (1 - (number - 1) / max(self.rounds, number, 1))
        self.shares = moved(self.shares, gaps, SIGN[self.hyper.gap] * step)

    def state(self) -> Payload:
        shares = torch.tensor([*self.shares.values()], dtype=torch.float64)
        names = {"devices": names_to_tensor([*self.shares]), "last": names_to_tensor(self.last)}
        return {**super().state(), **names, "shares": shares}

    def restore(self, state: Payload) -> None:
        super().restore(state)
        devices, shares = names_from_tensor(state["devices"]), state["shares"].tolist()
        self.shares = dict(zip(devices, shares, strict=True))
        self.last = names_from_tensor(state["last"])


class Client(fedavg.Client):
    hyper: Hyper

    def __init__(self, model: Net, data: Samples, hyper: Hyper, seed: int, device: str) -> None:
        super().__init__(model, data, hyper, seed, device)
        # Round -> the value `before`, for the last two rounds. Two values are kept, because the coordinator may
        # repeat a round.
        self.before: dict[int, float] = {}

    def run(self, ask: Ask) -> Payload:
        if ask.phase == "measure":
            return self.pair(self.number)
        found = self.pair(self.number - 1) if self.hyper.when == "next" else {}
        sent = super().run(ask)
        if (value := self.measured()) is not None:
            kept = {number: old for number, old in self.before.items() if number == self.number - 1}
            self.before = {**kept, self.number: value}
        return {**sent, **found}

    def pair(self, number: int) -> Payload:
        """Return the result of this device's trained model of round `number`, and of its present model."""
        before, after = self.before.get(number), self.measured()
        if before is None or after is None:
            return {}
        return {"validation": torch.tensor([before, after], dtype=next(self.model.parameters()).dtype)}

    def measured(self) -> float | None:
        if self.validation is None or not len(self.validation.y):
            return None
        scores, y = in_batches(self.model, self.model, self.validation.x), self.validation.y
        if self.hyper.gap == "accuracy":
            return int((scores.argmax(dim=1) == y).sum()) / len(y)
        return min(F.cross_entropy(scores, y).item(), HIGHEST["loss"])

    def state(self) -> Payload:
        values = torch.tensor([*self.before.values()], dtype=torch.float64)
        return {"rounds": torch.tensor([*self.before], dtype=torch.int64), "before": values}

    def restore(self, state: Payload) -> None:
        self.before = dict(zip(state["rounds"].tolist(), state["before"].tolist(), strict=True))


def with_room_for(shares: Mapping[str, float], present: Sequence[str]) -> dict[str, float]:
    """Return the weights with new devices; each gets the mean of all weights, and the sum is still 1."""
    new = [device for device in present if device not in shares]
    devices = len(shares) + len(new)
    old = {device: share * len(shares) / devices for device, share in shares.items()} if new else dict(shares)
    return {**old, **dict.fromkeys(new, 1 / devices)}


def moved(shares: Mapping[str, float], gaps: Mapping[str, float], step: float) -> dict[str, float]:
    """Return the weights after a step along the gaps; devices without a gap keep their weight."""
    largest = max(map(abs, gaps.values()), default=0.0)
    if not largest:
        return dict(shares)
    found = {
        device: min(1.0, max(0.0, shares[device] + gap / largest * step / len(gaps)))
        for device, gap in gaps.items()
    }
    total = fsum(found.values())
    if not total:
        return dict(shares)
    scale = fsum(shares[device] for device in found) / total
    return {**shares, **{device: share * scale for device, share in found.items()}}


def cost(sizes: Sizes) -> Cost:
    """Return the cost of a device that took part in the last round and has validation samples."""
    up = {"weights": sizes.weights, "validation": 0 if sizes.first_round else 2}
    return Cost(up, {"weights": sizes.weights})


def cost_of_phase(sizes: Sizes) -> Cost:
    return Cost({"weights": sizes.weights, "validation": 2}, {"weights": 2 * sizes.weights})


def variant(hyper: Hyper) -> Method:
    return replace(METHOD, cost=cost_of_phase) if hyper.when == "phase" else METHOD


METHOD = Method(
    "Zhang et al., CVPR 2023: FedDG-GA", Hyper, Server, Client, validates=True, arrays=(*WEIGHTS, "validation"),
    private="how good its last two models were on its validation samples", cost=cost, variant=variant,
    fixed_rounds="the step of the weights falls over the planned rounds",
)  # fmt: skip
