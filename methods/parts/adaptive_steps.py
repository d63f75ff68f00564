"""The server step of FedOpt (Reddi et al., ICLR 2021), which divides by the root of a second moment.

d <- mean_i x_i - x        m <- beta1 m + (1 - beta1) d        x <- x + server_lr m / (sqrt(v) + tau)

A method defines the new v. There is no bias correction. v begins with tau^2, m with 0.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor

from protofleet.methods.maths.moments import moving_mean
from protofleet.methods.nets.base import Net
from protofleet.methods.parts.local import LocalHyper
from protofleet.methods.parts.server_steps import Floor, SteppingServer
from protofleet.protocol.settings.bounds import Momentum, Rate


@dataclass(frozen=True)
class AdaptiveHyper(LocalHyper):
    server_lr: Rate = 0.01
    """Learning rate of the server (eta); the paper tunes it together with `lr`, from 0.001 to 10."""
    beta1: Momentum = 0.9
    """Weight of the old mean of the changes in the new mean; 0 means that only the last change counts."""
    tau: Floor = 1e-3
    """Number that is added to the divisor of a step; the paper tries 1e-5 to 0.1."""


class AdaptiveServer(SteppingServer):
    hyper: AdaptiveHyper

    def __init__(self, model: Net, hyper: AdaptiveHyper, seed: int) -> None:
        super().__init__(model, hyper, seed)
        self.m, self.v = self.moment("m"), self.moment("v", hyper.tau**2)

    @abstractmethod
    def square(self, v: Tensor, d: Tensor) -> Tensor:
        """Return the new second moment after the change d."""

    def step(self, name: str, x: Tensor, mean: Tensor) -> Tensor:
        hyper, d = self.hyper, mean - x
        m, v = moving_mean(self.m[name], d, hyper.beta1), self.square(self.v[name], d)
        self.m[name], self.v[name] = m, v
        return x + hyper.server_lr * m / (v.sqrt() + hyper.tau)
