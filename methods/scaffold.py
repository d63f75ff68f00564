"""SCAFFOLD (Karimireddy et al., ICML 2020): FedAvg whose steps are corrected by control variates.

y_i <- y_i - lr (g_i(y_i) + c - c_i)                            (eq. 3; g_i is the gradient of a batch)
c_i <- c_i + d_i,   d_i = -c + (x - y_i) / (lr a_i)             (eq. 4, option II)
x   <- mean_i y_i,    c <- c + (1/m) sum_i d_i                  (eq. 5, with the global step size 1)

x is the received model. a_i is the number of steps; with momentum it is FedNova's number, otherwise c_i would be too
large. d_i does not contain c_i. So a device sends y_i and a_i, and the server computes the same d_i in float64. The
upload is half of the paper's. With `send_controls`, a device sends d_i, as in the paper.

m is the number of devices of which an answer was ever used, so c is the mean of the c_i of these devices. A device
takes back the change of its c_i by an answer that was not used: methods/parts/counted.py. In three cases c is only
near to the mean: a codec rounds the models, a device loses its folder, or a coordinator goes on from an older copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from protofleet.methods import fedavg
from protofleet.methods.contract.base import Ask, Method, Payload, Reply, Round, Samples
from protofleet.methods.contract.cost import Cost, Sizes, eight_bytes
from protofleet.methods.contract.wants import TensorSpec, like
from protofleet.methods.maths.proximity import linear
from protofleet.methods.maths.steps import effective_steps, mean_gradient, steps_of
from protofleet.methods.nets.base import Net
from protofleet.methods.parts.averaging import plain_mean, weighted_mean
from protofleet.methods.parts.counted import COUNTED, CountedSum, KeptValues, changed, mean_in, named
from protofleet.methods.parts.local import LocalHyper, demand_one_of
from protofleet.methods.parts.prototypes import bounded
from protofleet.methods.parts.weights import WEIGHTS, load_weights, sent_parameters, weight_wants
from protofleet.protocol.settings.bounds import Momentum

Weights = Literal["uniform", "size"]


@dataclass(frozen=True)
class Hyper(LocalHyper):
    momentum: Momentum = 0.0
    """Momentum of the local optimizer; 0 means none, as in the paper."""
    weights: Weights = "uniform"
    """Weights in the mean of the models, `uniform` (as in the paper) or `size` (the numbers of examples)."""
    send_controls: bool = False
    """If true, devices send the changes of their control variates, as in the paper, instead of their steps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        demand_one_of("weights", self.weights, get_args(Weights))

    def steps(self, examples: int) -> float:
        """Return a_i of a device with this number of examples."""
        return effective_steps(steps_of(self.epochs, self.batch, examples), self.momentum)


class Server(fedavg.Server):
    hyper: Hyper

    def __init__(self, model: Net, hyper: Hyper, seed: int) -> None:
        super().__init__(model, hyper, seed)
        self.controls = CountedSum(model)

    def round(self) -> Round:
        models, x, c = weight_wants(self.model), sent_parameters(self.model), self.controls.mean()
        told = {**self.payload(), **self.controls.told("controls")}
        most = {member.device: self.hyper.steps(member.examples) for member in self.cohort}
        replies = yield Ask("train", told, {**models, **self.wants(named("controls", c), max(most.values()))})

        def change(reply: Reply, name: str) -> Tensor:
            sent = reply.payload
            if self.hyper.send_controls:
                return sent[f"controls.{name}"].double()
            y, steps = sent[f"weights.{name}"], min(float(sent["steps"]), most[reply.device])
            return control_change(x[name], y, c[name], self.hyper.lr, steps)

        self.controls.add(replies, self.number, change)
        mean = plain_mean if self.hyper.weights == "uniform" else weighted_mean
        load_weights(self.model, mean(replies, models))

    def wants(self, controls: Payload, most: float) -> Mapping[str, TensorSpec]:
        if self.hyper.send_controls:
            return {name: bounded(spec) for name, spec in like(controls).items()}
        return {"steps": TensorSpec((1,), "float64", low=0.0, high=most)}

    def state(self) -> Payload:
        return {**super().state(), **self.controls.state()}

    def restore(self, state: Payload) -> None:
        super().restore(state)
        self.controls.restore(state)


class Client(fedavg.Client):
    hyper: Hyper

    def __init__(self, model: Net, data: Samples, hyper: Hyper, seed: int, device: str) -> None:
        super().__init__(model, data, hyper, seed, device)
        self.kept, self.slopes = KeptValues(device), dict[str, Tensor]()

    def run(self, ask: Ask) -> Payload:
        x = {name: w.clone() for name, w in sent_parameters(self.model).items()}
        base, own = self.kept.continue_from(ask.payload, self.model)
        c = mean_in(ask.payload, "controls", self.model)
        self.slopes = {name: c[name] - own[name] for name in x}
        sent, steps = super().run(ask), self.hyper.steps(len(self.data.y))
        y = sent_parameters(self.model)
        changes = {name: control_change(x[name], y[name], c[name], self.hyper.lr, steps) for name in x}
        self.kept.keep(self.number, base, changed(own, changes))
        if self.hyper.send_controls:
            return {**sent, **named("controls", {name: changes[name].to(w.dtype) for name, w in x.items()})}
        return {**sent, "steps": torch.tensor([steps], dtype=torch.float64)}

    def objective(self, x: Tensor, y: Tensor) -> Tensor:
        return super().objective(x, y) + linear(self.model, self.slopes)

    def state(self) -> Payload:
        return self.kept.state()

    def restore(self, state: Payload) -> None:
        self.kept.restore(state)


def control_change(x: Tensor, y: Tensor, c: Tensor, lr: float, steps: float) -> Tensor:
    """Return d_i of one parameter, in float64; a device without examples takes no step, and has no d_i."""
    return mean_gradient(x, y, lr, steps) - c if steps >= 1 else torch.zeros_like(x, dtype=torch.float64)


def cost(sizes: Sizes) -> Cost:
    known = {"controls": int(sizes.weights), "counted": eight_bytes(2 * sizes.clients)}
    down = {"weights": sizes.weights, **({} if sizes.first_round else known)}
    return Cost(up={"weights": sizes.weights, "steps": eight_bytes(1)}, down=down)


def paper_cost(sizes: Sizes) -> Cost:
    return Cost(up={"weights": sizes.weights, "controls": int(sizes.weights)}, down=cost(sizes).down)


def variant(hyper: Hyper) -> Method:
    arrays = (*WEIGHTS, "controls", *COUNTED)
    return replace(METHOD, arrays=arrays, cost=paper_cost) if hyper.send_controls else METHOD


METHOD = Method(
    "arXiv:1910.06378", Hyper, Server, Client, private="its control variates after its last answers",
    arrays=(*WEIGHTS, "controls", *COUNTED, "steps"), cost=cost, variant=variant,
)  # fmt: skip
