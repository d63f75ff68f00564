"""A network that all devices share, in addition to each device's own network.

Both networks learn from the same batches, and from each other. The server half knows only the shared network.
A device's own network may be any network, and it never leaves the device.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor, nn

from protofleet.methods.contract.base import Ask, ClientHalf, Payload, Round, Samples, ServerHalf
from protofleet.methods.contract.wants import TensorSpec
from protofleet.methods.maths.distillation import divergence
from protofleet.methods.nets.base import Net
from protofleet.methods.parts.averaging import plain_mean
from protofleet.methods.parts.local import LocalHyper, demand_one_of, sgd, train
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import load_weights, weight_wants, weights_of

KL = Literal["classes", "elements"]
Targets = Literal["fixed", "moving"]


@dataclass(frozen=True)
class MutualHyper(LocalHyper):
    kl: KL = "classes"
    """Form of the divergence, the mean over samples of the sum over classes (`classes`) or of the mean over classes
    (`elements`, as in HtFLlib).
    """
    targets: Targets = "fixed"
    """Targets of the two losses, `fixed`, or `moving` if each loss also changes the network that is its
    target (HtFLlib).
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        demand_one_of("kl", self.kl, get_args(KL))
        demand_one_of("targets", self.targets, get_args(Targets))


class MutualServer(ServerHalf):
    """A server half that averages the shared network; every device counts once."""

    def round(self) -> Round:
        wants = self.wants()
        replies = yield Ask("train", self.shared(), wants)
        load_weights(self.model, plain_mean(replies, wants))

    def wants(self) -> Mapping[str, TensorSpec]:
        return weight_wants(self.model)

    def payload(self) -> Payload:
        """Return no arrays, because a device needs only its own network to predict."""
        return {}

    def shared(self) -> Payload:
        return weights_of(self.model)

    def state(self) -> Payload:
        return snapshot(weights_of(self.model))

    def restore(self, state: Payload) -> None:
        load_weights(self.model, state)


class MutualClient(ClientHalf):
    hyper: MutualHyper
    uses_samples = True  # The mutual network learns from them.

    def __init__(
        self, model: Net, data: Samples, hyper: MutualHyper, seed: int, device: str, mutual: Net | None = None
    ) -> None:
        super().__init__(model, data, hyper, seed, device)
        self.mutual = deepcopy(model) if mutual is None else mutual

    def networks(self) -> list[nn.Module]:
        return [self.model, self.mutual]

    def receive(self, payload: Payload) -> None:
        load_weights(self.mutual, payload)

    def run(self, ask: Ask) -> Payload:
        self.fit(ask.phase)
        return weights_of(self.mutual)

    def fit(self, phase: str) -> None:
        parts = nn.ModuleList(self.trained())
        optimizers = [sgd(part.parameters(), self.hyper) for part in parts]
        train(
            parts, self.data, self.objective, self.hyper, self.generator(phase),
            optimizers=optimizers, clipped=list(parts),
        )  # fmt: skip

    def trained(self) -> list[nn.Module]:
        """Return the networks to train; each has its own optimizer."""
        return [self.model, self.mutual]

    @abstractmethod
    def objective(self, x: Tensor, y: Tensor) -> Tensor: ...

    def divergence(self, teacher: Tensor, student: Tensor) -> Tensor:
        return divergence(self.target(teacher), student, elements=self.hyper.kl == "elements")

    def target(self, value: Tensor) -> Tensor:
        return value.detach() if self.hyper.targets == "fixed" else value

    def state(self) -> Payload:
        return snapshot(weights_of(self.model))

    def restore(self, state: Payload) -> None:
        load_weights(self.model, state)
