"""Server steps that move the parameters of the model beyond the mean of the devices' models.

A method defines the step of one parameter. It may keep moments: one array for each parameter, from round to round.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Annotated, TypeAlias

import torch
from torch import Tensor, nn

from protofleet.methods.contract.base import Ask, Payload, Round, ServerHalf
from protofleet.methods.nets.base import Net
from protofleet.methods.parts.averaging import weighted_mean
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import (
    load_weights,
    named_weights,
    sent_parameters,
    weight_wants,
    weights_of,
)
from protofleet.protocol.settings.bounds import LARGEST_FACTOR, Within

# Name of a parameter, its values x, and their mean over the devices -> new values. All values are in float64.
Step: TypeAlias = Callable[[str, Tensor, Tensor], Tensor]
Floor: TypeAlias = Annotated[float, Within(1e-9, LARGEST_FACTOR)]  # smallest divisor of a step


def move_parameters(model: nn.Module, mean: Mapping[str, Tensor], step: Step) -> None:
    """Move each parameter by `step`, and replace all other arrays, such as BatchNorm statistics, by their mean.

    A statistic does not move beyond the mean, because a running variance could become negative.
    """
    parameters, buffers = sent_parameters(model), {name for name, _ in model.named_buffers()}
    for name, x in named_weights(model).items():
        if name in parameters:
            x.copy_(step(name, x.double(), mean[f"weights.{name}"].double()))
        elif name in buffers:  # Otherwise the name is a second name of a parameter that has already moved.
            x.copy_(mean[f"weights.{name}"])


class Moment:
    """One array for each parameter of the server's model.

    The arrays are read in float64, and rounded to the type of the parameter when they are set.
    """

    def __init__(self, kind: str, model: Net, first: float = 0.0) -> None:
        self._kind = kind
        self._values = {name: torch.full_like(w, first) for name, w in sent_parameters(model).items()}

    def __getitem__(self, name: str) -> Tensor:
        return self._values[name].double()

    def __setitem__(self, name: str, value: Tensor) -> None:
        self._values[name].copy_(value)

    def state(self) -> Payload:
        return snapshot({f"{self._kind}.{name}": value for name, value in self._values.items()})

    def restore(self, state: Payload) -> None:
        for name, value in self._values.items():
            value.copy_(state[f"{self._kind}.{name}"])


class SteppingServer(ServerHalf):
    """A server half that moves the parameters by `step`, from the weighted mean of the devices' models."""

    def __init__(self, model: Net, hyper: object, seed: int) -> None:
        super().__init__(model, hyper, seed)
        self._moments: list[Moment] = []

    def moment(self, kind: str, first: float = 0.0) -> Moment:
        """Return a new moment, which is part of the state of this half."""
        self._moments.append(Moment(kind, self.model, first))
        return self._moments[-1]

    @abstractmethod
    def step(self, name: str, x: Tensor, mean: Tensor) -> Tensor:
        """Return the new values of a parameter; the method is called once for each parameter in a round."""

    def round(self) -> Round:
        wants = weight_wants(self.model)
        replies = yield Ask("train", self.payload(), wants)
        move_parameters(self.model, weighted_mean(replies, wants), self.step)

    def payload(self) -> Payload:
        return weights_of(self.model)

    def state(self) -> Payload:
        found = snapshot(weights_of(self.model))
        for moment in self._moments:
            found |= moment.state()
        return found

    def restore(self, state: Payload) -> None:
        load_weights(self.model, state)
        for moment in self._moments:
            moment.restore(state)
