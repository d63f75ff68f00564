"""Ditto (Li et al., ICML 2021): FedAvg, and a model of each device's own that stays near the global model.

w <- sum_i (N_i / N) w_i                                w_i: trained from w, as in FedAvg
min_(v_i)  CE(v_i) + (lam / 2) |v_i - w|^2              w: the global model that the device has just received

v_i never leaves its device, and is measured. It starts from the first network of the run, and continues from the
round in which the device last took part. The norm is over parameters, without buffers: the statistics of the batch
norms of v_i are the device's own.

Each of the two trainings has a new generator, so no training changes the random numbers of the other. Both generators
draw the same numbers as FedAvg and SingleSet do in this round. Therefore the global model has the same bits as
FedAvg's, and with lam = 0 every v_i has the same bits as SingleSet's model. (In PFLlib, lam is 0 by default.)
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

import torch.nn.functional as F
from torch import Tensor, nn

from protofleet.methods import fedavg, singleset
from protofleet.methods.contract.base import Ask, Method, Payload, Round, Samples
from protofleet.methods.maths.proximity import proximal
from protofleet.methods.nets.base import Net
from protofleet.methods.parts.averaging import weighted_mean
from protofleet.methods.parts.local import LocalHyper, train
from protofleet.methods.parts.weights import MEAN_OF_WEIGHTS, WEIGHTS, load_weights, weight_wants, weights_of
from protofleet.protocol.settings.bounds import Epochs, Weight


@dataclass(frozen=True)
class Hyper(LocalHyper):
    lam: Weight = 1.0
    """Weight (lambda) of the distance between a device's own model and the global model; 0 means that devices learn
    alone.
    """
    personal_epochs: Epochs | None = None
    """Number of epochs for the device's own model; if left out, `epochs` is used."""

    @property
    def own(self) -> LocalHyper:
        """Return the settings of the training of v_i."""
        return replace(self, epochs=self.personal_epochs or self.epochs)

    @property
    def device_epochs(self) -> int:
        return self.epochs + self.own.epochs


class Server(fedavg.Server):
    def round(self) -> Round:
        wants = weight_wants(self.model)
        replies = yield Ask("train", weights_of(self.model), wants)
        load_weights(self.model, weighted_mean(replies, wants))

    def payload(self) -> Payload:
        """Return no arrays, because a device needs only its own model to predict."""
        return {}


class Client(singleset.Client):
    """A client half whose `model` is v_i; `world` is the received model, and later w_i."""

    hyper: Hyper

    def __init__(self, model: Net, data: Samples, hyper: Hyper, seed: int, device: str) -> None:
        super().__init__(model, data, hyper, seed, device)
        self.world = deepcopy(model)

    def networks(self) -> Sequence[nn.Module]:
        return [self.model, self.world]

    def receive(self, payload: Payload) -> None:
        load_weights(self.world, payload)

    def run(self, ask: Ask) -> Payload:
        """Train v_i first, while `world` is still the received model; no copy of that model is needed."""
        train(self.model, self.data, self.objective, self.hyper.own, self.generator(ask.phase))
        train(self.world, self.data, self.world_objective, self.hyper, self.generator(ask.phase))
        return weights_of(self.world)

    def objective(self, x: Tensor, y: Tensor) -> Tensor:
        received = {name: w.detach() for name, w in self.world.named_parameters()}
        return super().objective(x, y) + self.hyper.lam * proximal(self.model, received)

    def world_objective(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.world(x), y)


METHOD = Method(
    "arXiv:2012.04221",
    Hyper,
    Server,
    Client,
    reports="personal",
    private="its own model",
    arrays=WEIGHTS,
    averaged=MEAN_OF_WEIGHTS,
    buffered=True,
    cost=fedavg.cost,
    calmer=("lr", "lam"),
)
