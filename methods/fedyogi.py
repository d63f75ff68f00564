"""FedYogi (Reddi et al., ICLR 2021): FedAdam whose second moment changes slowly when changes become small.

d <- sum_i (N_i / N) x_i - x                        m <- beta1 m + (1 - beta1) d                (alg. 2)
v <- v - (1 - beta2) d^2 sign(v - d^2)              x <- x + server_lr m / (sqrt(v) + tau)

x is the global model, and x_i the model of device i. v begins with tau^2, as in the paper, and there is no bias
correction. BatchNorm statistics are the weighted mean, as in FedAvg. Tune server_lr together with lr.
"""

from __future__ import annotations

from torch import Tensor

from protofleet.methods import fedadam, fedavg
from protofleet.methods.contract.base import Method
from protofleet.methods.maths.moments import yogi_square
from protofleet.methods.parts.weights import MEAN_OF_WEIGHTS, WEIGHTS


class Server(fedadam.Server):
    def square(self, v: Tensor, d: Tensor) -> Tensor:
        return yogi_square(v, d, self.hyper.beta2)


METHOD = Method(
    "arXiv:2003.00295", fedadam.Hyper, Server, fedavg.Client, arrays=WEIGHTS, averaged=MEAN_OF_WEIGHTS,
    buffered=True, cost=fedavg.cost,
    calmer=("lr", "server_lr"),
)  # fmt: skip
