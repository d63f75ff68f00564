"""Per-FedAvg (Fallah et al., NeurIPS 2020), first order: a model that one training step adapts to a device.

w' = w - lr grad f(w; D),   w <- w - beta grad f(w'; D')                        (alg. 1, with their FO approximation)

Batches have 2B samples: D is the first half of a batch, rounded up, and D' is the rest. One sample is both D and D'.
Steps are plain SGD: `momentum` and `weight_decay`, which an experiment may set for all its methods, have no effect.
In PFLlib beta is equal to lr, a device trains twice in a round, and with fewer than 2B samples it makes no step.
In the authors' code of FedPall, D and D' are whole batches in turn, so a device with one batch never trains.

After the last round, a device makes one step with lr on one batch of its own samples, and the model is then measured,
as the paper intends. The model without this step is also measured ("unadapted"). In earlier rounds, "personal" is the
model after the device's local training. So the last accuracy of the series belongs to another model than the values
before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor, nn

from protofleet.methods import fedavg
from protofleet.methods.contract.base import Ask, Method, Payload
from protofleet.methods.nets.base import Encoder, Net, frozen
from protofleet.methods.parts.local import LocalHyper, norms_of, train, train_norms
from protofleet.methods.parts.optimizers import SGD
from protofleet.methods.parts.weights import MEAN_OF_WEIGHTS, WEIGHTS, weights_of
from protofleet.protocol.settings.bounds import Rate, Within


@dataclass(frozen=True)
class Hyper(LocalHyper):
    batch: Annotated[int, Within(1, 500_000_000)] = 64
    """Number B of samples in each half of a batch; a batch has 2B samples."""
    beta: Rate | None = None
    """Learning rate of the second step; if left out, `lr` is used."""

    @property
    def pairs(self) -> LocalHyper:
        """Return the settings of the training loop, with the batch size 2B."""
        return LocalHyper(self.epochs, 2 * self.batch, self.lr, clip=self.clip)


class Client(fedavg.Client):
    hyper: Hyper
    # Copy of the model before the step of `after_last_round`; None except during an evaluation.
    unadapted: Net | None = None

    def begin(self, number: int) -> None:
        super().begin(number)
        self.unadapted = None  # An evaluation between two rounds may have set it.

    def networks(self) -> Sequence[nn.Module]:
        return [self.model, *([] if self.unadapted is None else [self.unadapted])]

    def run(self, ask: Ask) -> Payload:
        self.outer = FromWhereItStood(self.model.parameters(), self.hyper.beta or self.hyper.lr)
        generator = self.generator(ask.phase)
        train(self.model, self.data, self.meta, self.hyper.pairs, generator, optimizers=[self.outer])
        return weights_of(self.model)

    def meta(self, x: Tensor, y: Tensor) -> Tensor:
        """Make a step on the first half of a batch, and return the loss of the second half after this step."""
        half, norms = (len(y) + 1) // 2, norms_of(self.model)
        rest = slice(half, None) if len(y) > 1 else slice(None)
        train_norms(norms, half)
        self.outer.look_ahead(self.objective(x[:half], y[:half]), self.hyper.lr)
        train_norms(norms, len(y[rest]))
        return self.objective(x[rest], y[rest])

    def after_last_round(self) -> None:
        """Make one training step on one batch, and keep a copy of the model before the step."""
        self.unadapted = frozen(self.model)
        rows = torch.randperm(len(self.data.y), generator=self.generator("settle"))[: self.hyper.batch]
        one = OneBatch(self.data.x[rows], self.data.y[rows])
        plain = SGD(self.model.parameters(), self.hyper.lr)
        hyper = replace(self.hyper, epochs=1)
        train(self.model, one, self.objective, hyper, self.generator("settle"), optimizers=[plain])

    def other_rules(self) -> Mapping[str, nn.Module]:
        return {} if self.unadapted is None else {"unadapted": self.unadapted.head}

    def encoder(self, rule: nn.Module) -> Encoder:
        if self.unadapted is None or rule is not self.unadapted.head:
            return super().encoder(rule)
        return Encoder(self.unadapted.features, self.unadapted.projector)


@dataclass(frozen=True)
class OneBatch:
    x: Tensor
    y: Tensor


class FromWhereItStood(SGD):
    """An SGD that computes the gradient after a trial step, undoes the trial step, and then applies the gradient."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__([w for w in parameters if w.requires_grad], lr)
        self.stood: list[Tensor] = []

    def look_ahead(self, loss: Tensor, lr: float) -> None:
        gradients = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        self.stood = [w.detach().clone() for w in self.parameters]
        with torch.no_grad():
            for w, gradient in zip(self.parameters, gradients, strict=True):
                if gradient is not None:
                    w.sub_(gradient, alpha=lr)

    @torch.no_grad()
    def step(self) -> None:
        for w, before in zip(self.parameters, self.stood, strict=True):
            w.copy_(before)
        super().step()


METHOD = Method(
    "arXiv:2002.07948", Hyper, fedavg.Server, Client,
    reports="personal", other_rules=("unadapted",), arrays=WEIGHTS, averaged=MEAN_OF_WEIGHTS,
    buffered=True, cost=fedavg.cost,
)  # fmt: skip
