"""MOON (Li et al., CVPR 2021): FedAvg that pulls embeddings to the global model, away from the device's last model.

l_con = -log( e^(cos(z, z_glob) / tau) / (e^(cos(z, z_glob) / tau) + e^(cos(z, z_prev) / tau)) )     (eq. 3)
l = CE + mu l_con                                                                                    (eq. 4)

z_glob is from the model that the device has just received. z_prev is from the model that the device trained when it
last took part. Both models are frozen. Until the device has trained, z_prev is from the first network of the run.
So in round 1 z_glob and z_prev are from the same model. Then l_con is log 2 and has no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protofleet.methods import fedavg
from protofleet.methods.contract.base import Ask, Method, Payload, Samples
from protofleet.methods.maths.geometry import unit
from protofleet.methods.nets.base import Net, frozen
from protofleet.methods.parts.local import LocalHyper
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import MEAN_OF_WEIGHTS, WEIGHTS, load_weights, weights_of
from protofleet.protocol.settings.bounds import Temperature, Weight


@dataclass(frozen=True)
class Hyper(LocalHyper):
    mu: Weight = 1.0
    """Weight of the contrastive term; RethinkFL's table has 5, and 0 means off."""
    tau: Temperature = 0.5
    """Temperature of the contrastive term."""


class Client(fedavg.Client):
    hyper: Hyper

    def __init__(self, model: Net, data: Samples, hyper: Hyper, seed: int, device: str) -> None:
        super().__init__(model, data, hyper, seed, device)
        self.world, self.previous = frozen(model), frozen(model)

    def networks(self) -> Sequence[nn.Module]:
        return [self.model, self.world, self.previous]

    def run(self, ask: Ask) -> Payload:
        load_weights(self.world, weights_of(self.model))
        sent = super().run(ask)
        load_weights(self.previous, sent)
        return sent

    def objective(self, x: Tensor, y: Tensor) -> Tensor:
        z = self.model.embed(x)
        with torch.no_grad():
            near, far = self.world.embed(x), self.previous.embed(x)
        loss = F.cross_entropy(self.model.head(z), y)
        return loss + self.hyper.mu * contrast(z, near, far, self.hyper.tau)

    def state(self) -> Payload:
        return snapshot(weights_of(self.previous))

    def restore(self, state: Payload) -> None:
        load_weights(self.previous, state)


def contrast(z: Tensor, near: Tensor, far: Tensor, tau: float) -> Tensor:
    """Return l_con, averaged over the batch. The embeddings have the shape [B, D]."""
    cosines = [(unit(z) * unit(other)).sum(dim=1) for other in (near, far)]
    scores = torch.stack(cosines, dim=1) / tau
    return F.cross_entropy(scores, scores.new_zeros(len(z), dtype=torch.int64))


METHOD = Method(
    "arXiv:2103.16257",
    Hyper,
    fedavg.Server,
    Client,
    private="the model that it trained last",
    arrays=WEIGHTS,
    averaged=MEAN_OF_WEIGHTS,
    buffered=True,
    cost=fedavg.cost,
)
