"""The answers of one device in one round, with all that an attacker knows in addition.

  A0  one upload alone
  A1  all messages of the run, and the protocol: plan, network, first weights, and weights that devices send
  A2  A1, and samples of the domain that no device has used
  A3  A2, and the network of this device, as after the theft of the device

An attacker from A1 on has the network that makes the features if no party trains it, or if devices send its weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeAlias

import torch
from torch import Tensor

from protofleet.edge_client.data.shard import TensorSamples
from protofleet.lab.leakage.finding import Attacker
from protofleet.lab.leakage.held_out import NeverSent, never_sent
from protofleet.lab.leakage.maths.recovery import Ridge, fitted_ridge
from protofleet.lab.leakage.observed import Exchange, Observed, Truth
from protofleet.methods.contract.base import ClientHalf, Payload, Samples
from protofleet.methods.contract.bridge import to_torch
from protofleet.methods.parts.local import embed, in_batches
from protofleet.methods.parts.statistics import StatisticsClient, scaled
from protofleet.methods.parts.weights import weights_of

HEAD: Final = "weights.head."
LEAST_FITTED: Final = 50  # Fewest samples on which a map to pixels is fitted.
NO_SAMPLES: Final = TensorSamples(torch.zeros(0), torch.zeros(0, dtype=torch.int64))
Embed: TypeAlias = Callable[[Tensor], Tensor]  # Samples [N, ...] -> rows [N, D].


@dataclass(frozen=True)
class AnsweredTask:
    """One exchange, with its arrays as tensors."""

    phase: str
    broadcast: Payload
    answer: Payload
    examples: int

    def has(self, *names: str) -> bool:
        """Return whether the answer has all these arrays."""
        return all(name in self.answer for name in names)


@dataclass(frozen=True)
class Extractor:
    """A network that makes the features of a device, and the least attacker who has it."""

    attacker: Attacker
    embed: Embed


@dataclass(frozen=True)
class Scene:
    """The answers of one device in one round, as an attack sees them."""

    observed: Observed
    device: str
    number: int

    @cached_property
    def tasks(self) -> Sequence[AnsweredTask]:
        """Return the exchanges of this round, in their order."""
        return self.tasks_of(self.number)

    def tasks_of(self, number: int) -> list[AnsweredTask]:
        """Return the exchanges of this device in a round."""
        return [task_of(one) for one in self.observed.of(self.device) if one.number == number]

    @property
    def rounds(self) -> list[int]:
        """Return the rounds of which answers of this device are there."""
        return sorted({one.number for one in self.observed.of(self.device)})

    def task_with(self, *names: str) -> AnsweredTask | None:
        """Return the first exchange of the round whose answer has all these arrays."""
        return next((task for task in self.tasks if task.has(*names)), None)

    @property
    def truth(self) -> Truth | None:
        """Return the samples of the device, or None if they are not there."""
        return self.observed.truths.get(self.device)

    @cached_property
    def never_sent(self) -> NeverSent | None:
        """Return samples that no device has used; None if there is no truth, or if no such samples are there."""
        if self.truth is None or not len(self.truth.held_out.y):
            return None
        found = never_sent(self.truth.samples, self.truth.held_out)
        return found if len(found.others.y) else None

    @property
    def is_last(self) -> bool:
        """Return whether this is the last round of the device; only then its network of that time is there."""
        return self.number == self.rounds[-1]

    @cached_property
    def extractor(self) -> Extractor | None:
        """Return the network that makes the device's features, with the least attacker who has it."""
        plan = self.observed.plan
        kind = plan.load().Client
        if issubclass(kind, StatisticsClient):
            model, settings = plan.model(), plan.settings()
            return Extractor("A1", lambda x: scaled(embed(model, x).double(), settings))
        if self.sent_half is not None:
            return Extractor("A1", embedding_of(self.sent_half))
        if self.truth is not None and self.truth.half is not None and self.is_last:
            return Extractor("A3", embedding_of(self.truth.half))
        return None

    @cached_property
    def member_features(self) -> Tensor | None:
        """Return the true features of the device's samples in float64; None if they cannot be computed."""
        return None if self.truth is None else self._features(self.truth.samples)

    @cached_property
    def other_features(self) -> Tensor | None:
        """Return the features of the non-members."""
        return None if self.never_sent is None else self._features(self.never_sent.others)

    @cached_property
    def auxiliary_features(self) -> Tensor | None:
        """Return the features of the samples that an attacker from A2 on has."""
        return None if self.never_sent is None else self._features(self.never_sent.auxiliary)

    @cached_property
    def pixels_of_features(self) -> Ridge | None:
        """Return a linear map from features to pixels, fitted on auxiliary samples; None if there are too few."""
        if self.never_sent is None or self.auxiliary_features is None:
            return None
        samples = self.never_sent.auxiliary
        return map_to_pixels(self.auxiliary_features, samples) if len(samples.y) >= LEAST_FITTED else None

    def _features(self, samples: Samples) -> Tensor | None:
        if self.extractor is None or not len(samples.y):
            return None
        return self.extractor.embed(samples.x).double()

    @cached_property
    def sent_half(self) -> ClientHalf | None:
        """Return a client half with the weights that the device has sent in this round; None if features lack some.

        If the head is not sent, it has its first weights.
        """
        return next((half for task in self.tasks if (half := self._half_with(task.answer))), None)

    @cached_property
    def head_is_sent(self) -> bool:
        """Return whether the network of `sent_half` has been sent with its head."""
        half = self.sent_half
        names = [] if half is None else [name for name in weights_of(half.model) if name.startswith(HEAD)]
        return bool(names) and any(task.has(*names) for task in self.tasks)

    def _half_with(self, answer: Payload) -> ClientHalf | None:
        plan = self.observed.plan
        half = plan.client_half(NO_SAMPLES, self.device)
        if plan.load().mutual:
            half.model = plan.mutual_model()
        own = weights_of(half.model)
        sent = {name for name, value in own.items() if name in answer and answer[name].shape == value.shape}
        if not sent or any(not name.startswith(HEAD) for name in own.keys() - sent):
            return None
        with torch.no_grad():
            for name in sent:
                own[name].copy_(answer[name])
        return half


def map_to_pixels(features: Tensor, samples: Samples) -> Ridge:
    """Return a linear map that is fitted on features and their samples."""
    return fitted_ridge(features.numpy(), samples.x.reshape(len(samples.x), -1).double().numpy())


def embedding_of(half: ClientHalf) -> Embed:
    """Return a function that computes embeddings in evaluation mode."""
    return lambda x: in_batches(half.model, half.embedding, x)


def task_of(exchange: Exchange) -> AnsweredTask:
    answer, broadcast = (to_torch(arrays) for arrays in (exchange.answer, exchange.broadcast))
    return AnsweredTask(exchange.phase, broadcast, answer, exchange.examples)


def scenes(observed: Observed, devices: Sequence[str], number: int | None = None) -> Mapping[str, Scene]:
    """Return the scene of each device in this round, or in the last round of each device."""
    found = {device: Scene(observed, device, number or 0) for device in devices}
    return {
        device: scene if number else Scene(observed, device, scene.rounds[-1])
        for device, scene in found.items()
    }
