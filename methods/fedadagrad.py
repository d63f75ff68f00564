"""FedAdagrad (Reddi et al., ICLR 2021): FedAvg whose server divides each step by the root of all squared changes.

d <- sum_i (N_i / N) x_i - x        m <- beta1 m + (1 - beta1) d                (alg. 2)
v <- v + d^2                        x <- x + server_lr m / (sqrt(v) + tau)

x is the global model, and x_i the model of device i. v begins with tau^2, as in the paper. (In Flower and fluke it
begins with 0.) BatchNorm statistics are the weighted mean, as in FedAvg. Tune server_lr together with lr.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from protofleet.methods import fedavg
from protofleet.methods.contract.base import Method
from protofleet.methods.maths.moments import adagrad_square
from protofleet.methods.parts.adaptive_steps import AdaptiveHyper, AdaptiveServer
from protofleet.methods.parts.weights import MEAN_OF_WEIGHTS, WEIGHTS
from protofleet.protocol.settings.bounds import Momentum


@dataclass(frozen=True)
class Hyper(AdaptiveHyper):
    beta1: Momentum = 0.0
    """Weight of the old mean of the changes in the new mean; 0, as in the paper, means that only the last change
    counts.
    """


class Server(AdaptiveServer):
    def square(self, v: Tensor, d: Tensor) -> Tensor:
        return adagrad_square(v, d)


METHOD = Method(
    "arXiv:2003.00295", Hyper, Server, fedavg.Client, arrays=WEIGHTS, averaged=MEAN_OF_WEIGHTS,
    buffered=True, cost=fedavg.cost,
    calmer=("lr", "server_lr"),
)  # fmt: skip
