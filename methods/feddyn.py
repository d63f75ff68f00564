"""FedDyn (Acar et al., ICLR 2021): FedAvg whose local objectives move until all devices agree on the optimum.

y_i = argmin_w  L_i(w) - <g_i, w> + (alpha / 2) |w - x|^2,      g_i <- g_i - alpha (y_i - x)    (eq. 1)
h <- h - (alpha / m) sum_i (y_i - x),                           x   <- mean_i y_i - h / alpha   (alg. 1)

x is the received model. A device keeps s_i, the sum of its moves y_i - x, and the server the sum of all s_i. Then
g_i = -alpha s_i and h = -alpha mean_i s_i, so the server needs no alpha: x <- mean_i y_i + mean_i s_i.
m is the number of devices of which an answer was ever used, so h is the mean of their g_i. A device takes back the
change of its s_i by an answer that was not used (methods/parts/counted.py). In three cases h is only near to the
mean: a codec rounds the models, a device loses its folder, or a coordinator goes on from an older copy.
The statistics of batch norms are means. With `alpha_scale = "size"`, a device with twice as many examples as the
mean of the cohort uses alpha / 2. The authors' code does this, and measures mean_i y_i, not x (`report = "mean"`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, get_args

import torch
from torch import Tensor

from protofleet.methods import fedavg
from protofleet.methods.contract.base import Ask, Method, Payload, Round, Samples
from protofleet.methods.contract.cost import Cost, Sizes, eight_bytes
from protofleet.methods.contract.received import demand_arrays
from protofleet.methods.contract.wants import TensorSpec
from protofleet.methods.maths.proximity import linear, proximal
from protofleet.methods.nets.base import Net
from protofleet.methods.parts.averaging import plain_mean
from protofleet.methods.parts.counted import COUNTED, CountedSum, KeptValues, changed, mean_in
from protofleet.methods.parts.local import LocalHyper, Norm, demand_one_of
from protofleet.methods.parts.prototypes import bounded
from protofleet.methods.parts.weights import WEIGHTS, load_weights, sent_parameters, weight_wants
from protofleet.protocol.settings.bounds import LARGEST_FACTOR, Momentum, Within

Alpha = Annotated[float, Within(0, LARGEST_FACTOR, above=True)]
AlphaScale = Literal["none", "size"]
Report = Literal["server", "mean"]


@dataclass(frozen=True)
class Hyper(LocalHyper):
    momentum: Momentum = 0.0
    """Momentum of the local optimizer; 0 means none, as in the paper."""
    clip: Norm | None = 10.0
    """Largest norm of a gradient, as in the authors' code; larger gradients are scaled down to this norm."""
    alpha: Alpha = 0.01
    """Weight of the term that keeps a device near the received model, as in the authors' code."""
    alpha_scale: AlphaScale = "none"
    """Scale of alpha on a device, `none` or `size` (divided by its relative size, as in the authors' code)."""
    report: Report = "server"
    """Model that is measured, `server` (x, which devices train from) or `mean` (the mean of the devices' models)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        demand_one_of("alpha_scale", self.alpha_scale, get_args(AlphaScale))
        demand_one_of("report", self.report, get_args(Report))


class Server(fedavg.Server):
    hyper: Hyper

    def __init__(self, model: Net, hyper: Hyper, seed: int) -> None:
        super().__init__(model, hyper, seed)  # self.model is the measured model.
        self.moves = CountedSum(model)

    def round(self) -> Round:
        drift = self.moves.mean() if self.hyper.report == "mean" else {}
        x = {name: w + drift[name] if drift else w for name, w in sent_parameters(self.model).items()}
        wants = weight_wants(self.model)
        wants |= {name: bounded(wants[name]) for name in (f"weights.{n}" for n in x)}
        told = self.moves.told("drift" if drift else "")
        replies = yield Ask("train", {**self.payload(), **self.size(), **told}, wants)
        self.moves.add(replies, self.number, lambda reply, n: reply.payload[f"weights.{n}"].double() - x[n])
        load_weights(self.model, plain_mean(replies, wants))
        if self.hyper.report == "server":
            step = self.moves.mean()
            for name, w in sent_parameters(self.model).items():
                w += step[name]

    def size(self) -> Payload:
        """Return the mean number of examples of the cohort's devices, if devices need it."""
        if self.hyper.alpha_scale == "none":
            return {}
        mean = sum(member.examples for member in self.cohort) / max(1, len(self.cohort))
        return {"size": torch.tensor([max(1.0, mean)], dtype=torch.float64)}

    def state(self) -> Payload:
        return {**super().state(), **self.moves.state()}

    def restore(self, state: Payload) -> None:
        super().restore(state)
        self.moves.restore(state)


class Client(fedavg.Client):
    hyper: Hyper

    def __init__(self, model: Net, data: Samples, hyper: Hyper, seed: int, device: str) -> None:
        super().__init__(model, data, hyper, seed, device)
        self.kept = KeptValues(device)

    def run(self, ask: Ask) -> Payload:
        base, self.moves = self.kept.continue_from(ask.payload, self.model)
        if self.hyper.report == "mean":
            drift = mean_in(ask.payload, "drift", self.model)
            for name, w in sent_parameters(self.model).items():
                w += drift[name]
        self.start = {name: w.detach().clone() for name, w in self.model.named_parameters()}
        self.alpha = self.alpha_for(ask.payload)
        sent = super().run(ask)
        new = {name: w.double() - self.start[name] for name, w in sent_parameters(self.model).items()}
        self.kept.keep(self.number, base, changed(self.moves, new))
        return sent

    def alpha_for(self, payload: Payload) -> float:
        if self.hyper.alpha_scale == "none":
            return self.hyper.alpha
        demand_arrays(payload, {"size": TensorSpec((1,), "float64", low=1.0)})
        return self.hyper.alpha * float(payload["size"]) / max(1, len(self.data.y))

    def objective(self, x: Tensor, y: Tensor) -> Tensor:
        term = linear(self.model, self.moves) + proximal(self.model, self.start)
        return super().objective(x, y) + self.alpha * term

    def state(self) -> Payload:
        return self.kept.state()

    def restore(self, state: Payload) -> None:
        self.kept.restore(state)


def variant(hyper: Hyper) -> Method:
    mean, size = hyper.report == "mean", hyper.alpha_scale == "size"
    arrays = (*WEIGHTS, *COUNTED, *(["drift"] if mean else []), *(["size"] if size else []))

    def cost(sizes: Sizes) -> Cost:
        known = {"counted": eight_bytes(2 * sizes.clients), "drift": int(sizes.weights) * mean}
        down = {"weights": sizes.weights, "size": eight_bytes(int(size))}
        return Cost(up={"weights": sizes.weights}, down=down | ({} if sizes.first_round else known))

    return Method(
        "arXiv:2111.04263", Hyper, Server, Client, private="the sums of its moves after its last answers",
        arrays=arrays, cost=cost, variant=variant,
    )  # fmt: skip


METHOD = variant(Hyper())
