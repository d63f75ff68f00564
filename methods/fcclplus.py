"""FCCL+ (Huang et al., TPAMI 2024): devices agree on public images, and keep their own scores of wrong classes.

"train", from the mean of all models:
  l = CE + T^2 sum_{j != y} p_j log(p_j / q_j)     p, q: softmax of teacher's and own scores / T, over all classes
"public", from the model after "train", one step for each batch of the public images:
  c = N(s)^T N(S) / n    s [n, C] own scores, S mean scores of all devices, N scales columns to mean 0 and deviation 1
  l = sum_i (c_ii - 1)^2 + off_weight sum_{i != j} (c_ij + 1)^2 + similarity KL(softmax(M / tau) || softmax(m / tau))
      m [n, n - 1] cosines between the own embeddings, M the mean of m over all devices; softmax by rows

The teacher is the model after the device's last "train"; at first it is the first model of the run. Scores and
cosines are computed in evaluation mode. S and M count each device once. Both learning rates fall linearly, to
lr_last times their first value. "public" cannot begin from the mean of all models: all devices would have the same
scores, and nothing would change.
The first sum leaves out class y, so its probabilities do not sum to 1. For this reason the sum also lowers the score
of the label: its gradient for this score is T (1 - p_y) q_y. T must stay below the number of classes, or the model
learns nothing.
Differences from MarsFL or the authors' code:
  teacher     "global": the model that the device has just received, as in MarsFL.
  fresh_adam  a new Adam for each public batch, as in the authors' code. In that code the devices also exchange
              results once for each batch. Here they exchange the results of all batches at once.
  train_mode  the batch norms use the statistics of the public batch, in scores and steps, as in the authors' code.
  average     false: models are not averaged, so devices may have different networks, and each device's own model
              is measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protofleet.methods import fedavg
from protofleet.methods.contract.base import Ask, Method, Payload, Round, Samples
from protofleet.methods.contract.cost import Cost, Sizes
from protofleet.methods.contract.received import demand_arrays
from protofleet.methods.contract.wants import TensorSpec
from protofleet.methods.maths.distillation import divergence, non_target_divergence
from protofleet.methods.maths.geometry import diagonal, unit
from protofleet.methods.nets.base import Net, frozen, seeded_globally
from protofleet.methods.parts.averaging import plain_mean, weighted_mean
from protofleet.methods.parts.flat import flat_wants, flat_weights, load_flat
from protofleet.methods.parts.local import LocalHyper, demand_one_of, train
from protofleet.methods.parts.optimizers import BETA1, Adam
from protofleet.methods.parts.prototypes import LARGEST_NUMBER
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import WEIGHTS, load_weights, torch_device_of, weights_of
from protofleet.protocol.settings.bounds import (
    Batch,
    Epochs,
    Momentum,
    PositiveShare,
    Rate,
    Temperature,
    Weight,
)

Teacher = Literal["own", "global"]
SMALLEST_DEVIATION = 1e-12


@dataclass(frozen=True)
class Hyper(LocalHyper):
    epochs: Epochs = 20
    batch: Batch = 128
    lr: Rate = 0.001
    """Learning rate of Adam in local training; the rate falls linearly to `lr_last` times this value."""
    momentum: Momentum = BETA1
    """First beta of Adam."""
    public_lr: Rate = 0.001
    """Learning rate of Adam on the public images; the rate falls linearly to `lr_last` times this value."""
    lr_last: PositiveShare = 0.1
    """Part of both learning rates that is left at the end of the run."""
    temperature: Temperature = 3.0
    """Temperature T of the distillation from the teacher; T must be below the number of classes; the authors use 1
    for Office.
    """
    tau: Temperature = 0.02
    """Temperature of the similarities between public images."""
    off_weight: Weight = 0.0051
    """Weight of the correlations between different classes."""
    similarity: Weight = 3.0
    """Weight of the divergence between the similarities; 0 means off."""
    teacher: Teacher = "own"
    """Teacher of local training, `own` (the model after the device's last training) or `global` (the model
    that has just come, as in MarsFL).
    """
    average: bool = True
    """If true, the models are averaged; if false, they may be of any kind, and each device's own model is measured.
    """
    fresh_adam: bool = False
    """If true, every public batch begins with a new Adam, as in the authors' code."""
    train_mode: bool = False
    """If true, batch norms take the statistics of the public batch, as in the authors' code."""

    def __post_init__(self) -> None:
        super().__post_init__()
        demand_one_of("teacher", self.teacher, get_args(Teacher))

    def falling(self, rate: float, number: int, rounds: int) -> float:
        done = (number - 1) / rounds if rounds else 0.0
        return rate * (1 - (1 - self.lr_last) * done)


class Server(fedavg.Server):
    hyper: Hyper

    def round(self) -> Round:
        wants = self.wants()
        replies = yield Ask("train", self.payload(), wants)
        agreed = dict(plain_mean(replies, wants))
        weights = flat_wants(self.model) if self.hyper.average else {}
        replies = yield Ask("public", agreed, weights)
        if weights:
            load_flat(self.model, weighted_mean(replies, weights))

    def wants(self) -> Mapping[str, TensorSpec]:
        dtype = str(next(self.model.parameters()).dtype).removeprefix("torch.")
        rows, high = self.public.samples, LARGEST_NUMBER
        return {
            "logits": TensorSpec((rows, self.model.classes), dtype, low=-high, high=high),
            "cosines": TensorSpec((self.public.pairs,), dtype, low=-1, high=1),
        }

    def payload(self) -> Payload:
        return super().payload() if self.hyper.average else {}


class Client(fedavg.Client):
    hyper: Hyper

    def __init__(self, model: Net, data: Samples, hyper: Hyper, seed: int, device: str) -> None:
        super().__init__(model, data, hyper, seed, device)
        self.teacher = frozen(model)

    def networks(self) -> Sequence[nn.Module]:
        return [self.model, self.teacher]

    def run(self, ask: Ask) -> Payload:
        if ask.phase == "public":
            self.agree(ask.payload)
            return flat_weights(self.model) if self.hyper.average else {}
        self.learn(ask.phase)
        with self.public_mode(ask.phase), torch.no_grad():
            embedded = map(self.model.embed, self.public)
            # Rounding can give cosines above 1, so they are clamped.
            told = [(self.model.head(z), cosines(z).clamp(-1, 1)) for z in embedded]
        logits, found = zip(*told, strict=True)
        return {"logits": torch.cat(logits), "cosines": torch.cat([rows.reshape(-1) for rows in found])}

    def learn(self, phase: str) -> None:
        h = self.hyper
        if h.teacher == "global":
            load_weights(self.teacher, weights_of(self.model))
        rate = h.falling(h.lr, self.number, self.rounds)
        adam = Adam(self.model.parameters(), rate, h.momentum, h.weight_decay)
        train(self.model, self.data, self.objective, h, self.generator(phase), optimizers=[adam])
        load_weights(self.teacher, weights_of(self.model))

    def objective(self, x: Tensor, y: Tensor) -> Tensor:
        T = self.hyper.temperature
        with torch.no_grad():
            teacher = self.teacher(x)
        own = self.model(x)
        return F.cross_entropy(own, y) + T**2 * non_target_divergence(teacher / T, own / T, y)

    def agreed_specs(self) -> dict[str, TensorSpec]:
        dtype = str(next(self.model.parameters()).dtype).removeprefix("torch.")
        rows, pairs = sum(len(x) for x in self.public), sum(len(x) * (len(x) - 1) for x in self.public)
        logits = TensorSpec((rows, self.model.classes), dtype)
        return {"logits": logits, "cosines": TensorSpec((pairs,), dtype)}

    def agree(self, told: Payload) -> None:
        h, sizes = self.hyper, [len(x) for x in self.public]
        demand_arrays(told, self.agreed_specs())
        logits = torch.split(told["logits"].detach(), sizes)
        means = torch.split(told["cosines"].detach(), [n * (n - 1) for n in sizes])
        rate = h.falling(h.public_lr, self.number, self.rounds)
        adam = Adam(self.model.parameters(), rate, h.momentum)
        with self.public_mode("public"):
            for x, scores, rows in zip(self.public, logits, means, strict=True):
                adam = Adam(self.model.parameters(), rate, h.momentum) if h.fresh_adam else adam
                adam.zero_grad()
                torch.autograd.backward(self.disagreement(x, scores, rows.view(len(x), -1)))
                adam.step()

    def disagreement(self, x: Tensor, scores: Tensor, mean: Tensor) -> Tensor:
        h, z = self.hyper, self.model.embed(x)
        apart = divergence(mean / h.tau, cosines(z) / h.tau)
        return correlation_loss(self.model.head(z), scores, h.off_weight) + h.similarity * apart

    @contextmanager
    def public_mode(self, phase: str) -> Iterator[None]:
        seed = self.generator(f"{phase}-public").initial_seed()
        self.model.train(self.hyper.train_mode)
        with seeded_globally(seed, torch_device_of(self.model)):
            yield
        self.model.eval()

    def state(self) -> Payload:
        return snapshot({**weights_of(self.model), **weights_of(self.teacher, "teacher")})

    def restore(self, state: Payload) -> None:
        load_weights(self.model, state)
        load_weights(self.teacher, state, "teacher")


def cosines(z: Tensor) -> Tensor:
    """Return the cosines [n, n - 1] of each of the rows [n, D] with all other rows."""
    directions, n = unit(z), len(z)
    return (directions @ directions.T)[~diagonal(z)].view(n, n - 1)


def correlation_loss(own: Tensor, mean: Tensor, off_weight: float) -> Tensor:
    c = standardised(own).T @ standardised(mean) / len(own)
    on = diagonal(c)
    return (c[on] - 1).square().sum() + off_weight * (c[~on] + 1).square().sum()


def standardised(scores: Tensor) -> Tensor:
    """Return the scores with mean 0 and deviation 1 in each column; a column of equal scores becomes zero."""
    deviation = scores.std(dim=0)
    return (scores - scores.mean(dim=0)) / torch.where(deviation > SMALLEST_DEVIATION, deviation, 1.0)


def cost(sizes: Sizes) -> Cost:
    """Return the cost of a run in which models are averaged.

    The authors' code makes one exchange for each batch, but its exchanges have as many numbers in total as ours.
    """
    weights, told = {"weights": sizes.weights}, cost_of_images(sizes)
    return Cost({**weights, **told.up}, {**weights, **told.down})


def cost_of_images(sizes: Sizes) -> Cost:
    told = {"logits": sum(sizes.public) * sizes.C, "cosines": sum(n * (n - 1) for n in sizes.public)}
    return Cost(up=told, down=told)


def variant(hyper: Hyper) -> Method:
    if hyper.average:
        return METHOD
    return replace(METHOD, reports="personal", alike="nothing", arrays=IMAGES, cost=cost_of_images)


def misfit(hyper: Hyper, classes: int) -> str:
    """Return why the temperature T does not fit the number of classes, or "".

    If T is at least the number of classes, the sum over the other classes lowers the score of a label more
    than CE raises it.
    """
    if hyper.temperature < classes:
        return ""
    return (
        f"method.temperature is {hyper.temperature:g}, and the run has {classes} classes: from as many on, devices "
        f"unlearn what they know; set method.temperature below {classes}, for example to 1"
    )


IMAGES = ("logits", "cosines")
METHOD = Method(
    "arXiv:2309.16286", Hyper, Server, Client,
    private="the model that it trained last", public=True, arrays=(*WEIGHTS, *IMAGES),
    cost=cost, variant=variant, misfit=misfit, fixed_rounds="the learning rates fall over the planned rounds",
)  # fmt: skip
