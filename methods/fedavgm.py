"""FedAvgM (Hsu et al., 2019): FedAvg whose server moves the model with momentum.

d <- sum_i (N_i / N) x_i - x        m <- server_momentum m + d        x <- x + server_lr m

x is the global model, and x_i the model of device i. m begins with 0, so round 1 is a round of FedAvg if server_lr is
1. (In fluke's code the change of the first round is lost.) With server_momentum 0, all rounds are rounds of FedAvg.
BatchNorm statistics are the weighted mean, as in FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from protofleet.methods import fedavg
from protofleet.methods.contract.base import Method
from protofleet.methods.nets.base import Net
from protofleet.methods.parts.local import LocalHyper
from protofleet.methods.parts.server_steps import SteppingServer
from protofleet.methods.parts.weights import MEAN_OF_WEIGHTS, WEIGHTS
from protofleet.protocol.settings.bounds import Momentum, Rate


@dataclass(frozen=True)
class Hyper(LocalHyper):
    server_momentum: Momentum = 0.9
    """Momentum of the server; 0 means none."""
    server_lr: Rate = 1.0
    """Learning rate of the server; tune it together with `lr`."""


class Server(SteppingServer):
    hyper: Hyper

    def __init__(self, model: Net, hyper: Hyper, seed: int) -> None:
        super().__init__(model, hyper, seed)
        self.m = self.moment("m")

    def step(self, name: str, x: Tensor, mean: Tensor) -> Tensor:
        m = self.hyper.server_momentum * self.m[name] + (mean - x)
        self.m[name] = m
        return x + self.hyper.server_lr * m


METHOD = Method(
    "Hsu et al., 2019: server momentum, arXiv:1909.06335", Hyper, Server, fedavg.Client, arrays=WEIGHTS,
    averaged=MEAN_OF_WEIGHTS, buffered=True,
    cost=fedavg.cost, calmer=("lr", "server_lr", "server_momentum"),
)  # fmt: skip
