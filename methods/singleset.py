"""SingleSet: every device learns alone, with the same local budget as in other methods. Nothing is sent.

This is the baseline in FedPall's tables. Other papers call it Local.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from protofleet.methods.contract.base import Ask, ClientHalf, Method, Payload, Round, ServerHalf
from protofleet.methods.contract.cost import Cost, Sizes
from protofleet.methods.parts.local import LocalHyper, train
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import load_weights, weights_of


class Server(ServerHalf):
    def payload(self) -> Payload:
        return {}

    def round(self) -> Round:
        yield Ask("train")

    def state(self) -> Payload:
        return {}

    def restore(self, state: Payload) -> None:
        """Do nothing, because there is no state."""


class Client(ClientHalf):
    hyper: LocalHyper

    def receive(self, payload: Payload) -> None:
        """Do nothing, because the server sends no arrays."""

    def run(self, ask: Ask) -> Payload:
        train(self.model, self.data, self.objective, self.hyper, self.generator(ask.phase))
        return {}

    def objective(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.model(x), y)

    def state(self) -> Payload:
        return snapshot(weights_of(self.model))

    def restore(self, state: Payload) -> None:
        load_weights(self.model, state)


def cost(sizes: Sizes) -> Cost:
    return Cost()


METHOD = Method(
    "no paper",
    LocalHyper,
    Server,
    Client,
    reports="personal",
    alike="embedding",
    private="the model",
    arrays=(),
    cost=cost,
)
