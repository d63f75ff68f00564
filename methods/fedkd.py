"""FedKD (Wu et al., Nature Communications 2022): a teacher on each device, and a shared student, sent in factors.

L_own = CE(f(x), y) + [KL(g(x) || f(x)) + MSE(z, W_h z_g)] / (CE(f(x), y) + CE(g(x), y))
L_g   = CE(g(x), y) + [KL(f(x) || g(x)) + MSE(z, W_h z_g)] / (CE(f(x), y) + CE(g(x), y))
e_t   = energy_first + (energy_last - energy_first) t / T      t = 1 .. T rounds

f is the device's own network, which is never sent. g is the student (`mutual` of the plan). z and z_g are the
embeddings of f and g. W_h maps z_g to z, and stays on the device. Targets and the denominator are constants. So
the MSE in L_own changes only z, and the MSE in L_g changes only z_g and W_h. The mean of the devices' messages counts
each device once. f is measured.

A matrix, or a kernel written as a matrix of outputs x rest, is sent as the factors U, s and V. The factors have the
smallest rank that keeps the share e_t of the sum of the squared singular values. The matrix is sent whole if it has
no more numbers than the factors. Vectors and buffers are sent whole. Differences between the public codes:
  travel   "update", as in the authors' code: the change of g in training is sent up in factors. g is sent down whole,
           because a device that missed a round does not have the g to which a change must be added.
           "parameters", as in HtFLlib: g itself is sent in factors, both up and down.
  rank     neither code tries the full rank. If every lower rank keeps less than the share e_t, both codes send zeros.
  energy   HtFLlib uses the e_t of the round before.
  kl, targets  have the same meaning as in FML. With "moving" targets, the loss contains the MSE term twice.
  clip     10, as in HtFLlib. When both networks make few errors, the denominator is small, so the quotient and the
           steps are large. The authors' code has no clip; it uses Adam at 3e-6. We tried SGD at 0.02 with momentum on
           three easy classes, with six seeds. By round 6, one or two classes were lost in all six runs without clip,
           but only in two of the six runs with clip.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch.nn.functional as F
from torch import Tensor, nn

from protofleet.methods.contract.base import Ask, Method, Payload, Round, Samples, seeded
from protofleet.methods.contract.cost import Cost, Numbers, Sizes, parameters
from protofleet.methods.contract.received import WrongArraysError
from protofleet.methods.contract.wants import TensorSpec
from protofleet.methods.maths.lowrank import numbers, packed, unpacked
from protofleet.methods.nets.base import Net, initialised_from
from protofleet.methods.parts.averaging import plain_mean
from protofleet.methods.parts.local import Norm, demand_one_of
from protofleet.methods.parts.mutual import MutualClient, MutualHyper, MutualServer
from protofleet.methods.parts.prototypes import LARGEST_NUMBER
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import WEIGHTS, load_weights, named_weights, weight_wants, weights_of
from protofleet.protocol.settings.bounds import PositiveShare

Travel = Literal["update", "parameters"]
SMALLEST_LOSS = 1e-6  # Lower bound of a divisor, which is 0 if the networks make no errors.


@dataclass(frozen=True)
class Hyper(MutualHyper):
    clip: Norm | None = 10.0
    travel: Travel = "update"
    """Content of the factors, `update` (the change of the shared network goes up, and the network comes down
    whole) or `parameters` (the network itself goes both ways in factors, as in HtFLlib).
    """
    energy_first: PositiveShare = 0.95
    """Part of the squared singular values that the factors keep at the start of the run."""
    energy_last: PositiveShare = 0.98
    """Part of the squared singular values that the factors keep in the last round."""

    def __post_init__(self) -> None:
        super().__post_init__()
        demand_one_of("travel", self.travel, get_args(Travel))

    def energy(self, number: int, rounds: int) -> float:
        """Return e_t of a round: the sent share of the sum of all squared singular values."""
        done = number / rounds if rounds else 1.0
        return self.energy_first + (self.energy_last - self.energy_first) * done


class Server(MutualServer):
    hyper: Hyper

    def round(self) -> Round:
        wants = self.wants()
        replies = yield Ask("train", self.shared(), wants)
        own = weights_of(self.model)
        mean = plain_mean([replace(r, payload=Unpacked(r.payload, own)) for r in replies], wants)
        changes = changing(self.model) if self.hyper.travel == "update" else ()
        for name, value in own.items():
            value.copy_(value + mean[name] if name in changes else mean[name])

    def wants(self) -> Mapping[str, TensorSpec]:
        """Return the specifications of the arrays.

        The numbers of factors have bounds. The general limit on the norm of an array is not enough, because two
        factors within this limit could make a matrix with a much larger norm.
        """
        wants = dict(weight_wants(self.model))
        for number, (name, (m, n)) in enumerate(matrices(self.model).items()):
            wants[name] = replace(
                wants[name], shape=(f"n{number}",), most=m * n, step=m + n + 1,
                low=-LARGEST_NUMBER, high=LARGEST_NUMBER,
            )  # fmt: skip
        return wants

    def shared(self) -> Payload:
        whole = super().shared()
        if self.hyper.travel == "update":
            return whole
        return in_factors(whole, self.model, self.hyper.energy(self.number, self.rounds))


class Client(MutualClient):
    hyper: Hyper

    def __init__(
        self, model: Net, data: Samples, hyper: Hyper, seed: int, device: str, mutual: Net | None = None
    ) -> None:
        super().__init__(model, data, hyper, seed, device, mutual)
        like = next(model.parameters())
        with initialised_from(seeded(seed, "W_h").initial_seed()):
            self.W_h = nn.Linear(self.mutual.embedding_size, model.embedding_size, bias=False)
        self.W_h.to(like.device, like.dtype)

    def networks(self) -> list[nn.Module]:
        return self.trained()

    def receive(self, payload: Payload) -> None:
        super().receive(Unpacked(payload, weights_of(self.mutual)))

    def run(self, ask: Ask) -> Payload:
        before = snapshot(weights_of(self.mutual))
        self.fit(ask.phase)
        found = weights_of(self.mutual)
        if self.hyper.travel == "update":
            found |= {name: found[name] - before[name] for name in changing(self.mutual)}
        return in_factors(found, self.mutual, self.hyper.energy(self.number, self.rounds))

    def trained(self) -> list[nn.Module]:
        return [*super().trained(), self.W_h]

    def objective(self, x: Tensor, y: Tensor) -> Tensor:
        z, z_g = self.model.embed(x), self.mutual.embed(x)
        own, shared, mapped = self.model.head(z), self.mutual.head(z_g), self.W_h(z_g)
        losses = F.cross_entropy(own, y) + F.cross_entropy(shared, y)
        divergences = self.divergence(shared, own) + self.divergence(own, shared)
        hints = F.mse_loss(z, self.target(mapped)) + F.mse_loss(mapped, self.target(z))
        return losses + (divergences + hints) / self.target(losses).clamp(min=SMALLEST_LOSS)

    def state(self) -> Payload:
        return {**super().state(), **snapshot(weights_of(self.W_h, "W_h"))}

    def restore(self, state: Payload) -> None:
        super().restore(state)
        load_weights(self.W_h, state, "W_h")


class Unpacked(Mapping[str, Tensor]):
    """Weights in the shapes of the network, from a message that may be on the disk.

    Each weight is computed when it is read.
    """

    def __init__(self, message: Payload, like: Mapping[str, Tensor]) -> None:
        self._message, self._like = message, like

    def __getitem__(self, name: str) -> Tensor:
        value, shape = self._message[name], self._like[name].shape
        if value.dtype != self._like[name].dtype:
            raise WrongArraysError(f"{name} is {value.dtype}, but the network needs {self._like[name].dtype}")
        if value.shape == shape:
            return value
        return unpacked(value, shape[0], shape[1:].numel()).reshape(shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._message)

    def __len__(self) -> int:
        return len(self._message)


def matrices(model: Net) -> dict[str, tuple[int, int]]:
    """Return rows and columns of the parameters with more than one dimension, by their wire names."""
    return {
        f"weights.{name}": (len(p), p[0].numel())
        for name, p in model.named_parameters()
        if p.ndim > 1 and name in named_weights(model)
    }


def changing(model: Net) -> Collection[str]:
    """Return the names of the arrays of which only the change is sent.

    Buffers are sent whole, because they are not learned, and because a sum of changes could make a variance negative.
    """
    return {f"weights.{name}" for name, _ in model.named_parameters() if name in named_weights(model)}


def in_factors(weights: Mapping[str, Tensor], model: Net, energy: float) -> Payload:
    shapes = matrices(model)
    return {
        name: packed(value.reshape(shapes[name]), energy) if name in shapes else value
        for name, value in weights.items()
    }


def cost(sizes: Sizes) -> Cost:
    g = sizes.mutual or sizes.model
    return Cost(up={"weights": in_all(g, sizes.ranks)}, down={"weights": parameters(g)})


def cost_of_parameters(sizes: Sizes) -> Cost:
    g = sizes.mutual or sizes.model
    return Cost(up={"weights": in_all(g, sizes.ranks)}, down={"weights": in_all(g, sizes.ranks_down)})


def in_all(g: Net, ranks: Mapping[str, int]) -> Numbers:
    """Return how many numbers are sent for all weights with these ranks.

    The ranks depend on the data. An array without a rank is sent whole.
    """
    saved = sum(m * n - numbers(m, n, ranks.get(name, min(m, n))) for name, (m, n) in matrices(g).items())
    return parameters(g) - saved


def variant(hyper: Hyper) -> Method:
    return replace(METHOD, cost=cost_of_parameters) if hyper.travel == "parameters" else METHOD


METHOD = Method(
    "arXiv:2108.13323", Hyper, Server, Client,
    reports="personal", private="its own network and W_h", alike="nothing", mutual=True, arrays=WEIGHTS,
    cost=cost, variant=variant, fixed_rounds="method.energy_last is reached in the planned last round",
)  # fmt: skip
