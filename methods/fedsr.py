"""FedSR (Nguyen et al., NeurIPS 2022): FedAvg on random representations that are short and describe only the class.

(mu, s) = projector(features(x)),  z = mu + softplus(s) eps,  eps ~ N(0, I) for each image and step
L   = L_CE(head(z)) + c_l2r L2R + c_cmi CMI
L2R = mean_b |z|                                     l2r = "squared": mean_b |z|^2, as the paper writes it
CMI = mean_b KL( N(C mu, (C sigma)^2) || N(r_mu[y], softplus(r_sigma[y])^2) ), summed over z's numbers

At first r_mu = 0, r_sigma = 1 and C = 1. The model's optimizer also trains r_mu, r_sigma and C, and they stay on the
device. log(C sigma) has no value if C is below 0, so the logarithm is computed from the square.

The prediction is the mean softmax over 20 random values of eps. In one run, all images and all machines have
the same 20 values, so a model gives the same prediction on every machine.

In the authors' code, a device has the weight 1 / K, and a round has 5 steps. Here a device has the weight N_i / N,
and trains for a number of epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protofleet.methods import fedavg
from protofleet.methods.contract.base import Ask, Method, Payload, Samples, seeded
from protofleet.methods.nets.base import Encoder, Net, initialised_from
from protofleet.methods.parts.local import LocalHyper, demand_one_of, train
from protofleet.methods.parts.rules import MeanOfDraws
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import MEAN_OF_WEIGHTS, WEIGHTS, load_weights, weights_of
from protofleet.protocol.settings.bounds import Weight

L2R = Literal["norm", "squared"]

DRAWS: Final = 20
# Lower bound for squares. For smaller squares, the gradients of a logarithm and of a quotient are useless.
LEAST: Final = 1e-12

SIZE: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {
    "norm": lambda z: (z.square().sum(dim=1) + 1e-12).sqrt().mean(),
    "squared": lambda z: z.square().sum(dim=1).mean(),
}


@dataclass(frozen=True)
class Hyper(LocalHyper):
    c_l2r: Weight = 0.01
    """Weight of L2R, which keeps representations short; 0 means off."""
    c_cmi: Weight = 5e-4
    """Weight of CMI; the command in the authors' README has 0.001, and 0 means off."""
    l2r: L2R = "norm"
    """Form of L2R, the mean `norm`, or the mean `squared` norm as in the paper."""

    def __post_init__(self) -> None:
        super().__post_init__()
        demand_one_of("l2r", self.l2r, get_args(L2R))


class Gaussian(nn.Module):
    """A projector whose output is mu [B, D], so `Net.embed` returns mu; the method `moments` also returns sigma."""

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.both = nn.Linear(inputs, 2 * size)

    def forward(self, features: Tensor) -> Tensor:
        return self.moments(features)[0]

    def moments(self, features: Tensor) -> tuple[Tensor, Tensor]:
        mu, s = self.both(features).chunk(2, dim=1)
        return mu, F.softplus(s)


class Conditional(nn.Module):
    """The device's own parameters: r_mu and r_sigma [classes, D], and the scalar C of the formula."""

    def __init__(self, classes: int, size: int) -> None:
        super().__init__()
        self.mu = nn.Parameter(torch.zeros(classes, size))
        self.sigma = nn.Parameter(torch.ones(classes, size))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, mu: Tensor, sigma: Tensor, y: Tensor) -> Tensor:
        """Return CMI for mu and sigma [B, D]; the docstring of this file has the formula."""
        variance = self.scale.square() * sigma.square()
        return normal_kl(self.scale * mu, variance, self.mu[y], F.softplus(self.sigma[y]).square()).mean()


def normal_kl(mean: Tensor, variance: Tensor, other: Tensor, others: Tensor) -> Tensor:
    """Return KL( N(mean, variance) || N(other, others) ), [B, D] -> [B].

    `other` is the mean of the second distribution, and `others` is its variance.
    """
    variance, others = variance.clamp(min=LEAST), others.clamp(min=LEAST)
    terms = others.log() - variance.log() + (variance + (mean - other).square()) / others - 1
    return terms.sum(dim=1) / 2


class BothMoments(nn.Module):
    """A projector that returns mu and sigma in one array [B, 2 D]."""

    def __init__(self, projector: nn.Module) -> None:
        super().__init__()
        self.projector = projector

    def forward(self, features: Tensor) -> Tensor:
        assert isinstance(self.projector, Gaussian)
        return torch.cat(self.projector.moments(features), dim=1)


class Server(fedavg.Server):
    def __init__(self, model: Net, hyper: Hyper, seed: int) -> None:
        super().__init__(with_moments(model, seed), hyper, seed)


class Client(fedavg.Client):
    hyper: Hyper
    noise: torch.Generator

    def __init__(self, model: Net, data: Samples, hyper: Hyper, seed: int, device: str) -> None:
        super().__init__(with_moments(model, seed), data, hyper, seed, device)
        like = next(model.parameters())
        self.own = Conditional(model.classes, model.embedding_size).to(like.device, like.dtype)

    def networks(self) -> Sequence[nn.Module]:
        return [self.model, self.own]

    def run(self, ask: Ask) -> Payload:
        self.noise = self.generator(f"{ask.phase}-noise")
        both = nn.ModuleList([self.model, self.own])
        train(both, self.data, self.objective, self.hyper, self.generator(ask.phase))
        return weights_of(self.model)

    def objective(self, x: Tensor, y: Tensor) -> Tensor:
        hyper, (mu, sigma) = self.hyper, self.moments(x)
        z = mu + sigma * torch.randn(mu.shape, generator=self.noise, dtype=mu.dtype).to(mu.device)
        cmi: Tensor = self.own(mu, sigma, y)
        loss = F.cross_entropy(self.model.head(z), y)
        return loss + hyper.c_l2r * SIZE[hyper.l2r](z) + hyper.c_cmi * cmi

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        assert isinstance(self.model.projector, Gaussian)
        return self.model.projector.moments(self.model.features(x))

    def rule(self) -> nn.Module:
        like, size = next(self.model.parameters()), self.model.embedding_size
        noise = torch.randn(DRAWS, size, generator=seeded(self.seed, "draws"), dtype=like.dtype)
        return MeanOfDraws(self.model.head, noise.to(like.device))

    def encoder(self, rule: nn.Module) -> Encoder:
        return Encoder(self.model.features, BothMoments(self.model.projector))

    def state(self) -> Payload:
        return snapshot(weights_of(self.own, "conditional"))

    def restore(self, state: Payload) -> None:
        load_weights(self.own, state, "conditional")


def with_moments(model: Net, seed: int) -> Net:
    """Replace the projector of the model by a projector that returns mu and sigma; the head stays."""
    like = next(model.parameters())
    with initialised_from(seed):
        projector = Gaussian(model.feature_size, model.embedding_size)
    model.projector = projector.to(like.device, like.dtype)
    return model


METHOD = Method(
    "Nguyen et al., NeurIPS 2022: FedSR", Hyper, Server, Client,
    private="r_mu, r_sigma and C", arrays=WEIGHTS, averaged=MEAN_OF_WEIGHTS, buffered=True, cost=fedavg.cost,
)  # fmt: skip
