"""FedGen (Zhu et al., ICML 2021), as HtFLlib has it: heads are averaged, and a server's generator teaches them.

Server: G <- Adam on CE(sum_i (N_i / N) h_i(G(eps, y)), y)    h_i the heads of this round's devices, fixed
Client: l = CE(h(f(x)), y) + CE(h(G(eps, y')), y')            G fixed, from round 2 on
        eps ~ U(0, 1), y and y' drawn in proportion to the devices' samples of each class

The generator belongs to the server. It continues from round to round, but each round uses a new Adam. The
generator is sent from its first training on, with the counts [C] by which labels are drawn. These are the counts of
all devices that were ever in a cohort. Devices state their counts when they join. Representations below the head stay
on their devices, as in LG-FedAvg. Differences between the public codes:
  generator    HtFLlib, and its fork by the authors of FedSA, train a generator but never save it. Devices get an
               untrained generator, already in round 1, and use it with the statistics of the batch. This is
               "untrained"; our default is "trained".
  server_lr    3e-4, which the authors use for MNIST. HtFLlib has 0.1, but in HtFLlib no device gets the trained
               generator. With 0.1, the outputs of the generator have lengths of hundreds, and grow. On the six digit
               data sets, 0.1 costs ten points of accuracy, and heads can become NaN.
  bias         their layer in front of BatchNorm has a bias, which BatchNorm removes again. Our layer has no bias.
  terms        the authors' weights for each class and teacher, their term for diversity and their divergence on the
               device are not in HtFLlib, and not here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protofleet.methods.contract.base import Ask, Method, Payload, Reply, Round, Samples, seeded
from protofleet.methods.contract.cost import Cost, Sizes, eight_bytes, parameters
from protofleet.methods.contract.received import WrongArraysError, demand_arrays
from protofleet.methods.contract.wants import TensorSpec
from protofleet.methods.nets.base import Net, frozen
from protofleet.methods.nets.generator import Generator, embedding_generator
from protofleet.methods.parts.averaging import shares_of, weighted_mean
from protofleet.methods.parts.local import LocalHyper, demand_one_of, norms_of, train_norms
from protofleet.methods.parts.optimizers import Adam
from protofleet.methods.parts.prototypes import bounded
from protofleet.methods.parts.shared import SharedHead, SharingClient, SharingServer
from protofleet.methods.parts.state import names_from_tensor, names_to_tensor, snapshot
from protofleet.methods.parts.weights import WEIGHTS, load_weights, weight_wants, weights_of
from protofleet.protocol.settings.bounds import Epochs, Rate, Width, Within

Which = Literal["trained", "untrained"]


@dataclass(frozen=True)
class Hyper(LocalHyper):
    generator: Which = "trained"
    """State of the generator that devices get, `trained`, or `untrained` as in HtFLlib."""
    noise: Width = 32
    """Number of random inputs of the generator."""
    hidden: Width = 512
    """Width of the generator's hidden layer."""
    server_steps: Epochs = 100
    """Number of training steps of the generator in a round."""
    server_batch: Annotated[int, Within(2, 65_536)] = 10
    """Number of representations in a batch of the generator, at least 2 because one sample has no variance."""
    server_lr: Rate = 3e-4
    """Learning rate of the generator's Adam; HtFLlib has 0.1, for a generator that no device gets."""

    def __post_init__(self) -> None:
        super().__post_init__()
        demand_one_of("generator", self.generator, get_args(Which))


class Server(SharedHead, SharingServer):
    hyper: Hyper

    def __init__(self, model: Net, hyper: Hyper, seed: int) -> None:
        super().__init__(model, hyper, seed)
        self.G = generator_of(model, hyper, seed)
        self.learned = False
        self.counts: dict[str, Tensor] = {}  # Counts [C] of each device.

    def round(self) -> Round:
        self.counts |= {m.device: torch.tensor(m.counts, dtype=torch.int64) for m in self.cohort}
        wants = self.wants()
        replies = yield Ask("train", {**self.payload(), **self.lesson()}, wants)
        self.load_shared(weighted_mean(replies, wants))
        if self.hyper.generator == "trained" and self.labels().any():
            self.teach(self.teachers(replies))

    def wants(self) -> Mapping[str, TensorSpec]:
        """Return the specifications of the arrays.

        The numbers of the heads are bounded, because the generator learns from every head.
        """
        wants = weight_wants(self.model, keys=self.shared_keys())
        return {name: bounded(spec) if spec.is_float else spec for name, spec in wants.items()}

    def lesson(self) -> Payload:
        """Return the arrays that devices need in training in addition to the head.

        A device predicts without these arrays.
        """
        if not (self.learned or self.hyper.generator == "untrained") or not self.labels().any():
            return {}
        return {**weights_of(self.G, "generator"), "counts": self.labels()}

    def labels(self) -> Tensor:
        """Return the number of samples of each class, [C], over all known devices."""
        none = torch.zeros(self.model.classes, dtype=torch.int64)
        return torch.stack([none, *self.counts.values()]).sum(dim=0)

    def teachers(self, replies: Sequence[Reply]) -> list[tuple[float, nn.Module]]:
        """Return pairs of a share and a head. The share is the weight of the head's output in the mean.

        For linear heads, return only the mean head. Its output is equal to the mean of all heads' outputs.
        """
        head = frozen(self.model.head)
        if isinstance(head, nn.Linear):
            return [(1.0, head)]
        found = []
        for reply, share in shares_of(replies):
            load_weights(head, reply.payload, "weights.head")
            found.append((share, deepcopy(head)))
        return found

    def teach(self, teachers: Sequence[tuple[float, nn.Module]]) -> None:
        hyper, generator, before = self.hyper, self.generator("teach"), snapshot(weights_of(self.G))
        adam = Adam(self.G.parameters(), hyper.server_lr)
        self.G.train()
        for _ in range(hyper.server_steps):
            z, y = generated(self.G, self.labels(), hyper.server_batch, generator)
            logits = torch.stack([share * head(z) for share, head in teachers]).sum(dim=0)
            adam.zero_grad()
            torch.autograd.backward(F.cross_entropy(logits, y))
            adam.step()
        if all(bool(value.isfinite().all()) for value in self.G.state_dict().values()):
            self.learned = True
        else:  # The heads are within their bounds, but so large that the square of a gradient is infinite.
            load_weights(self.G, before)

    def state(self) -> Payload:
        devices = sorted(self.counts)
        counts = [self.counts[device] for device in devices]
        return {
            **super().state(), **snapshot(weights_of(self.G, "generator")), "learned": torch.tensor(self.learned),
            "devices": names_to_tensor(devices), "counts": torch.stack(counts) if counts else torch.zeros(0),
        }  # fmt: skip

    def restore(self, state: Payload) -> None:
        super().restore(state)
        load_weights(self.G, state, "generator")
        self.learned = bool(state["learned"])
        self.counts = dict(zip(names_from_tensor(state["devices"]), state["counts"].cpu(), strict=True))


class Client(SharedHead, SharingClient):
    hyper: Hyper

    def __init__(self, model: Net, data: Samples, hyper: Hyper, seed: int, device: str) -> None:
        super().__init__(model, data, hyper, seed, device)
        self.G = generator_of(model, hyper, seed).requires_grad_(False)
        self.labels: Tensor | None = None

    def networks(self) -> Sequence[nn.Module]:
        return [self.model, self.G]

    def receive(self, payload: Payload) -> None:
        super().receive(payload)
        load_weights(self.G, payload, "generator")
        self.labels = self.labels_in(payload)

    def labels_in(self, payload: Payload) -> Tensor | None:
        """Return the counts [C] in a payload; None if the payload has neither counts nor a generator."""
        if not any(name.partition(".")[0] in ("generator", "counts") for name in payload):
            return None
        demand_arrays(payload, {"counts": TensorSpec((self.model.classes,), "int64", low=0)})
        counts = payload["counts"]
        if not counts.any():
            raise WrongArraysError("counts are 0 for every class, so no label can be drawn")
        return counts

    def learn(self, phase: str) -> None:
        self.draws = self.generator(f"{phase}-generated")
        super().learn(phase)

    def objective(self, x: Tensor, y: Tensor) -> Tensor:
        loss = super().objective(x, y)
        if self.labels is None:
            return loss
        train_norms(norms_of(self.G), len(y) if self.hyper.generator == "untrained" else 0)
        z, other = generated(self.G, self.labels, len(y), self.draws)
        return loss + F.cross_entropy(self.model.head(z), other)


def generator_of(model: Net, hyper: Hyper, seed: int) -> Generator:
    """Return a generator whose first weights are the same on every machine."""
    first, like = seeded(seed, "generator").initial_seed(), next(model.parameters())
    made = embedding_generator(hyper.noise, model.classes, hyper.hidden, model.embedding_size, seed=first)
    return made.to(like.device, like.dtype).eval()


def generated(G: Generator, counts: Tensor, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return embeddings [size, D] and the classes [size] for which they are made.

    The classes are drawn in proportion to their counts.
    """
    like = next(G.parameters())
    y = torch.multinomial(counts.double().cpu(), size, replacement=True, generator=generator)
    eps = torch.rand(size, G.noise, generator=generator, dtype=like.dtype)
    y = y.to(like.device)
    return G(eps.to(like.device), y), y


def cost_under(hyper: Hyper, sizes: Sizes) -> Cost:
    """Return the cost under these settings.

    The server sends C counts. A device sends its own counts in its hello message, and hellos are not counted here.
    """
    head = {"weights": parameters(sizes.model.head)}
    if sizes.first_round and hyper.generator == "trained":
        return Cost(head, head)
    with torch.device("meta"):
        G = Generator(hyper.noise, sizes.C, hyper.hidden, sizes.D)
    return Cost(head, {**head, "generator": parameters(G), "counts": eight_bytes(sizes.C)})


def cost(sizes: Sizes) -> Cost:
    return cost_under(Hyper(), sizes)


def variant(hyper: Hyper) -> Method:
    return replace(METHOD, cost=partial(cost_under, hyper))


METHOD = Method(
    "arXiv:2105.10056", Hyper, Server, Client,
    reports="personal", private="the network below the head", needs_counts=True, alike="head",
    arrays=(*WEIGHTS, "generator", "counts"), cost=cost, variant=variant,
)  # fmt: skip
