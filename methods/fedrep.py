"""FedRep (Collins et al., ICML 2021): a representation that all devices learn together, and each device's own head.

h_i <- head_epochs of SGD on the head, phi fixed                                (alg. 1, lines 7-9)
phi_i <- base_epochs of SGD on the representation, h_i fixed                    (line 10)
phi <- sum_i (N_i / N) phi_i                                                    (line 13, which has 1/(r n))

The parameters of the fixed part do not change. But its batch norms update their statistics in both parts of the
training. Each part of the training begins with a new optimizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain

from torch import nn

from protofleet.methods.contract.base import Method
from protofleet.methods.contract.cost import Cost, Sizes, parameters
from protofleet.methods.parts.local import LocalHyper, sgd, train
from protofleet.methods.parts.shared import SharedPart, SharingClient, SharingServer
from protofleet.methods.parts.weights import MEAN_OF_WEIGHTS, WEIGHTS, keys_of_head
from protofleet.protocol.settings.bounds import Epochs


@dataclass(frozen=True)
class Hyper(LocalHyper):
    head_epochs: Epochs | None = None
    """Number of epochs for the head; if left out, `epochs` is used."""
    base_epochs: Epochs = 1
    """Number of epochs for the representation; the default is FedPall's value, and PFLlib has a setting for each
    part.
    """

    @property
    def device_epochs(self) -> int:
        return (self.head_epochs or self.epochs) + self.base_epochs


class Base(SharedPart):
    def shared_keys(self) -> frozenset[str]:
        return frozenset(self.model.state_dict()) - keys_of_head(self.model)


class Server(Base, SharingServer):
    pass


class Client(Base, SharingClient):
    hyper: Hyper

    def learn(self, phase: str) -> None:
        head = list(self.model.head.parameters())
        base = list(chain(self.model.features.parameters(), self.model.projector.parameters()))
        self.fit(head, base, self.hyper.head_epochs or self.hyper.epochs, f"{phase}-head")
        self.fit(base, head, self.hyper.base_epochs, f"{phase}-base")

    def fit(self, part: list[nn.Parameter], rest: list[nn.Parameter], epochs: int, purpose: str) -> None:
        hyper, generator = replace(self.hyper, epochs=epochs), self.generator(purpose)
        with fixed(rest):
            train(self.model, self.data, self.objective, hyper, generator, optimizers=[sgd(part, hyper)])


@contextmanager
def fixed(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Switch off the gradients of these parameters inside this context.

    Old gradients of these parameters are deleted. Otherwise the clipping of gradients would count the old gradients.
    """
    held = [parameter for parameter in parameters if parameter.requires_grad]
    for parameter in held:
        parameter.requires_grad_(False)
        parameter.grad = None
    try:
        yield
    finally:
        for parameter in held:
            parameter.requires_grad_(True)


def cost(sizes: Sizes) -> Cost:
    base = {"weights": sizes.weights - parameters(sizes.model.head)}
    return Cost(up=base, down=base)


METHOD = Method(
    "arXiv:2102.07078",
    Hyper,
    Server,
    Client,
    reports="personal",
    private="the head",
    arrays=WEIGHTS,
    averaged=MEAN_OF_WEIGHTS,
    buffered=True,
    cost=cost,
)
