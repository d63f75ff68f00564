"""FedProx (Li et al., MLSys 2020): FedAvg whose local objective keeps each device near the global model.

min_w  CE(w) + (mu / 2) |w - w_glob|^2                                          (eq. 2)

The norm is over parameters, without buffers. Three public codes forget the square, so their gradient
has the length mu at any distance.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from protofleet.methods import fedavg
from protofleet.methods.contract.base import Method, Payload
from protofleet.methods.maths.proximity import proximal
from protofleet.methods.parts.local import LocalHyper
from protofleet.methods.parts.weights import MEAN_OF_WEIGHTS, WEIGHTS
from protofleet.protocol.settings.bounds import Weight


@dataclass(frozen=True)
class Hyper(LocalHyper):
    mu: Weight = 0.01
    """Weight of the proximal term; 0 means off."""


class Client(fedavg.Client):
    hyper: Hyper

    def receive(self, payload: Payload) -> None:
        super().receive(payload)
        self.received = {name: w.detach().clone() for name, w in self.model.named_parameters()}

    def objective(self, x: Tensor, y: Tensor) -> Tensor:
        return super().objective(x, y) + self.hyper.mu * proximal(self.model, self.received)


METHOD = Method(
    "arXiv:1812.06127",
    Hyper,
    fedavg.Server,
    Client,
    arrays=WEIGHTS,
    averaged=MEAN_OF_WEIGHTS,
    buffered=True,
    cost=fedavg.cost,
)
