"""FedAvg (McMahan et al., AISTATS 2017): average the models, weighted by how much data each device has.

w <- sum_i (N_i / N) w_i                                                        (alg. 1)

w_i is the model of device i, which has N_i of the N samples. Running statistics are averaged in the same way as
parameters. num_batches_tracked is taken from one device.

final_fit: after the last broadcast every device fits the model once more to its own data, and the result is
measured, as in FedHP's table ("standard practice" in personalized learning).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch.nn.functional as F
from torch import Tensor

from protofleet.methods.contract.base import Ask, ClientHalf, Method, Payload, Round, ServerHalf
from protofleet.methods.contract.cost import Cost, Sizes
from protofleet.methods.parts.averaging import weighted_mean
from protofleet.methods.parts.local import LocalHyper, train
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import MEAN_OF_WEIGHTS, WEIGHTS, load_weights, weight_wants, weights_of


@dataclass(frozen=True)
class Hyper(LocalHyper):
    final_fit: bool = False
    """If true, every device fits the model once more to its own data after the last broadcast, and is
    measured with the result.
    """


class Server(ServerHalf):
    def round(self) -> Round:
        wants = weight_wants(self.model)
        replies = yield Ask("train", self.payload(), wants)
        load_weights(self.model, weighted_mean(replies, wants))

    def payload(self) -> Payload:
        return weights_of(self.model)

    def state(self) -> Payload:
        return snapshot(weights_of(self.model))

    def restore(self, state: Payload) -> None:
        load_weights(self.model, state)


class Client(ClientHalf):
    """A client half that does not train after the last round, for the methods that extend FedAvg."""

    hyper: LocalHyper

    def receive(self, payload: Payload) -> None:
        load_weights(self.model, payload)

    def run(self, ask: Ask) -> Payload:
        train(self.model, self.data, self.objective, self.hyper, self.generator(ask.phase))
        return weights_of(self.model)

    def objective(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.model(x), y)

    def state(self) -> Payload:
        return {}

    def restore(self, state: Payload) -> None:
        """Do nothing, because every round starts from the global model."""


class FittingClient(Client):
    hyper: Hyper

    def after_last_round(self) -> None:
        if self.hyper.final_fit:
            train(self.model, self.data, self.objective, self.hyper, self.generator("settle"))


def cost(sizes: Sizes) -> Cost:
    return Cost(up={"weights": sizes.weights}, down={"weights": sizes.weights})


def variant(hyper: Hyper) -> Method:
    return replace(METHOD, reports="personal") if hyper.final_fit else METHOD


METHOD = Method(
    "arXiv:1602.05629",
    Hyper,
    Server,
    FittingClient,
    arrays=WEIGHTS,
    averaged=MEAN_OF_WEIGHTS,
    buffered=True,
    cost=cost,
    variant=variant,
)
