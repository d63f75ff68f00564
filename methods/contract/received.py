"""Checks of a broadcast's arrays before a client half uses them.

If the half cannot use an array, the coordinator has made the mistake. The device refuses the task and
continues.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from protofleet.methods.contract.base import ClientHalf, Payload
from protofleet.methods.contract.wants import TensorSpec, not_finite, problem_with_forms


class WrongArraysError(RuntimeError):
    """The error for an array that a half cannot use.

    The message has the name of the array, the form that it has, and the form that it must have.
    """


def demand_arrays(payload: Payload, specs: Mapping[str, TensorSpec]) -> None:
    """Raise WrongArraysError if one of these arrays is missing or lacks the required dtype, shape or range."""
    if problem := problem_with_forms(specs, {name: payload[name] for name in specs if name in payload}):
        raise WrongArraysError(problem.message)


def demand_declared_and_finite(half: ClientHalf, payload: Payload) -> None:
    """Raise WrongArraysError if the method does not declare an array, or if an array is not finite."""
    if unknown := half.kinds.undeclared(payload):
        raise WrongArraysError(f"{unknown[0][:64]} is an array that this method does not have")
    if problem := not_finite(payload):
        raise WrongArraysError(problem.message)


class ReceivedArrays(Mapping[str, Tensor]):
    """The arrays that the coordinator sent; `last` is the name of the array that was read last."""

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
