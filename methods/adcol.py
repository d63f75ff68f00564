"""ADCOL (Li et al., ICML 2023): models stay apart, and a server's discriminator makes their features look alike.

Device i: l = CE + mu KL(uniform || softmax(D(z))), D fixed: D must not recognise the device of a feature z
Server  : D <- SGD on CE(D(z), i) over the features of all samples of the round's devices

Each device begins with the first network of the run, and then keeps its own model. After training, a device sends
the features of all its samples, computed in evaluation mode. D and its optimizer continue from round to round.
Differences from the paper, or between the public codes:
  clients  the paper's D has an output for each client of the run from the start. Here devices may join at any
           time. D has one output for each device that ever took part, and gets an output for each new device. A
           device always keeps its output. If `clients` is the number of devices, D is as in the paper.
  mu       0.3 in FedPall's copy of ADCOL, 0.5 in FL-bench. FL-bench also averages the models (average_models).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protofleet.methods import singleset
from protofleet.methods.contract.base import Ask, Method, Payload, Round, Samples, ServerHalf
from protofleet.methods.contract.cost import Cost, Sizes, parameters
from protofleet.methods.maths.adversary import kl_with_uniform
from protofleet.methods.nets.base import Net, frozen
from protofleet.methods.nets.mlp import amplifier
from protofleet.methods.parts.averaging import weighted_mean
from protofleet.methods.parts.local import LocalHyper, embed, train
from protofleet.methods.parts.pooled import FEATURES, Discriminator, Outputs, amplifier_from, feature_wants
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import WEIGHTS, load_weights, weight_wants, weights_of
from protofleet.protocol.settings.bounds import Batch, Epochs, Momentum, Rate, Weight


@dataclass(frozen=True)
class Hyper(LocalHyper):
    mu: Weight = 0.1
    """Weight of the loss that makes features look alike to the discriminator (0.3 in FedPall's copy, 0.5 in
    FL-bench); 0 means off.
    """
    average_models: bool = False
    """If true, the models are also averaged, as in FL-bench."""
    clients: Outputs = 0
    """Number of outputs (K) of the discriminator at the start, also for devices that come later; 0 means that an
    output is added when a device first takes part.
    """
    server_epochs: Epochs = 3
    """Number of passes of the server over the features of a round."""
    server_batch: Batch = 64
    """Number of features in a batch on the server."""
    server_lr: Rate = 0.01
    """Learning rate of SGD on the server."""
    server_momentum: Momentum = 0.9
    """Momentum of SGD on the server; 0 means none."""
    server_weight_decay: Weight = 1e-5
    """Weight decay of SGD on the server; 0 means none."""

    @property
    def server(self) -> LocalHyper:
        return LocalHyper(
            epochs=self.server_epochs, batch=self.server_batch, lr=self.server_lr,
            momentum=self.server_momentum, weight_decay=self.server_weight_decay,
        )  # fmt: skip


class Server(ServerHalf):
    hyper: Hyper

    def __init__(self, model: Net, hyper: Hyper, seed: int) -> None:
        super().__init__(model, hyper, seed)
        self.D = Discriminator(model, model.embedding_size, max(hyper.clients, 1), seed)
        self.figures: dict[str, float] = {}

    def round(self) -> Round:
        self.figures = {}
        self.D.add_devices(member.device for member in self.cohort)
        weights = weight_wants(self.model) if self.hyper.average_models else {}
        asked = {**weights, **feature_wants(self.model, self.cohort)}
        replies = yield Ask("train", {**self.payload(), **self.D.weights()}, asked)
        self.figures = self.D.fit(replies, self.hyper.server, self.generator("fit"))
        if weights:
            load_weights(self.model, weighted_mean(replies, weights))

    def payload(self) -> Payload:
        return weights_of(self.model) if self.hyper.average_models else {}

    def state(self) -> Payload:
        return snapshot({**self.payload(), **self.D.state()})

    def restore(self, state: Payload) -> None:
        load_weights(self.model, state)
        self.D.restore(state)

    def monitor(self) -> Mapping[str, float]:
        return self.figures


class Client(singleset.Client):
    hyper: Hyper

    def __init__(self, model: Net, data: Samples, hyper: Hyper, seed: int, device: str) -> None:
        super().__init__(model, data, hyper, seed, device)
        like = next(model.parameters())
        D = amplifier(model.embedding_size, max(hyper.clients, 1))
        self.D = frozen(D.to(like.device, like.dtype))

    def networks(self) -> Sequence[nn.Module]:
        return [self.model, self.D]

    def receive(self, payload: Payload) -> None:
        load_weights(self.model, payload)
        self.D = frozen(amplifier_from(payload, self.D, Discriminator.kind))

    def run(self, ask: Ask) -> Payload:
        train(self.model, self.data, self.objective, self.hyper, self.generator(ask.phase))
        weights = weights_of(self.model) if self.hyper.average_models else {}
        return {**weights, "features": embed(self.model, self.data.x)}

    def objective(self, x: Tensor, y: Tensor) -> Tensor:
        z = self.model.embed(x)
        apart = kl_with_uniform(self.D(z), direction="reverse")
        return F.cross_entropy(self.model.head(z), y) + self.hyper.mu * apart


def cost(sizes: Sizes, outputs: int = 0) -> Cost:
    """Return the cost; `outputs` is the number of outputs of D at the start."""
    with torch.device("meta"):
        D = amplifier(sizes.D, max(outputs, sizes.clients))
    return Cost({"features": sizes.examples * sizes.D}, {Discriminator.kind: parameters(D)})


def cost_with_models(sizes: Sizes, outputs: int = 0) -> Cost:
    own, models = cost(sizes, outputs), {"weights": sizes.weights}
    return Cost({**models, **own.up}, {**models, **own.down})


def variant(hyper: Hyper) -> Method:
    if hyper.average_models:
        form = partial(cost_with_models, outputs=hyper.clients)
        return replace(
            METHOD, reports="global", alike="network", private="", arrays=(*WEIGHTS, *ARRAYS), cost=form
        )
    return replace(METHOD, cost=partial(cost, outputs=hyper.clients)) if hyper.clients else METHOD


ARRAYS = (*FEATURES, Discriminator.kind)
METHOD = Method(
    "Li et al., ICML 2023", Hyper, Server, Client,
    reports="personal", alike="embedding", private="the model", arrays=ARRAYS, cost=cost, variant=variant,
)  # fmt: skip
