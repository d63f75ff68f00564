"""FedAdam (Reddi et al., ICLR 2021): FedAvg whose server moves the model as Adam does.

d <- sum_i (N_i / N) x_i - x                m <- beta1 m + (1 - beta1) d                (alg. 2)
v <- beta2 v + (1 - beta2) d^2              x <- x + server_lr m / (sqrt(v) + tau)

x is the global model, and x_i the model of device i. As in the paper, v begins with tau^2, and there is no bias
correction. (In Flower and fluke v begins with 0, and Flower has a correction.) So in round 1 no parameter moves by
more than server_lr (1 - beta1) / sqrt(1 - beta2), which is server_lr by default. BatchNorm statistics are the
weighted mean, as in FedAvg. Tune server_lr together with lr.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from protofleet.methods import fedavg
from protofleet.methods.contract.base import Method
from protofleet.methods.maths.moments import adam_square
from protofleet.methods.parts.adaptive_steps import AdaptiveHyper, AdaptiveServer
from protofleet.methods.parts.weights import MEAN_OF_WEIGHTS, WEIGHTS
from protofleet.protocol.settings.bounds import Momentum


@dataclass(frozen=True)
class Hyper(AdaptiveHyper):
    beta2: Momentum = 0.99
    """Weight of the old mean of the squared changes in the new mean."""


class Server(AdaptiveServer):
    hyper: Hyper

    def square(self, v: Tensor, d: Tensor) -> Tensor:
        return adam_square(v, d, self.hyper.beta2)


METHOD = Method(
    "arXiv:2003.00295", Hyper, Server, fedavg.Client, arrays=WEIGHTS, averaged=MEAN_OF_WEIGHTS,
    buffered=True, cost=fedavg.cost,
    calmer=("lr", "server_lr"),
)  # fmt: skip
