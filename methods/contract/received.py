"""Arrays of a broadcast, compared with what a client half can take before the half uses them.

The coordinator is at fault where they differ: the device refuses the question, and goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from protofleet.methods.contract.base import ClientHalf, Payload
from protofleet.methods.contract.wants import TensorSpec, not_finite, problem_with_forms


class WrongArraysError(RuntimeError):
    """Arrays that a half cannot take; it names the array, what it is and what it must be."""


def demand_arrays(payload: Payload, specs: Mapping[str, TensorSpec]) -> None:
    """Raise WrongArraysError where one of these arrays is missing or has another dtype, shape or range."""
    if problem := problem_with_forms(specs, {name: payload[name] for name in specs if name in payload}):
        raise WrongArraysError(problem.message)


def demand_declared_and_finite(half: ClientHalf, payload: Payload) -> None:
    """Raise WrongArraysError for an array that the method does not declare, and for one that holds no number."""
    if unknown := half.kinds.undeclared(payload):
        raise WrongArraysError(f"{unknown[0][:64]} is no array of this method")
    if problem := not_finite(payload):
        raise WrongArraysError(problem.message)


class Broadcast(Mapping[str, Tensor]):
    """Arrays as the coordinator sent them. It knows which of them was read last."""

    def __init__(self, payload: Payload) -> None:
        self._payload, self.last = payload, ""

    def __getitem__(self, name: str) -> Tensor:
        value = self._payload[name]
        self.last = name
        return value

    def __contains__(self, name: object) -> bool:
        return name in self._payload

    def __iter__(self) -> Iterator[str]:
        return iter(self._payload)

    def __len__(self) -> int:
        return len(self._payload)
