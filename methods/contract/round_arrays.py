"""Find the arrays that cross in a round, with their dtypes and shapes, from a method's server half and its cost.

The server half runs two rounds. Each update that it gets is the smallest that it accepts. An array may have a free
length, such as the number of prototypes. This length follows from the bytes that the cost of the method states.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from protofleet.methods.contract.base import Ask, Member, Payload, Reply, Round, ServerHalf
from protofleet.methods.contract.cost import Cost
from protofleet.methods.contract.plan import Plan
from protofleet.methods.contract.wants import ITEM_BYTES, TensorSpec, comes_back, dtype_name
from protofleet.protocol.wire.kinds import kind_in


class UnknownArraysError(ValueError):
    """The shapes of the arrays do not follow from the cost of the method."""


@dataclass(frozen=True)
class CrossingArray:
    """An array that a device sends or receives."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    # In an update: whether the task's broadcast has the same array. In a broadcast: whether an earlier one had it.
    in_broadcast: bool
    phase: str

    @property
    def kind(self) -> str:
        return kind_in(self.name)

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class RoundArrays:
    up: tuple[CrossingArray, ...]
    down: tuple[CrossingArray, ...]


def round_arrays(plan: Plan, members: Sequence[Member], cost: Cost) -> RoundArrays:
    """Return the arrays of a round after the first; raise UnknownArraysError if the cost has other bytes."""
    plan = replace(plan, hyper={**plan.hyper, **cheap_settings(plan)})
    first, second = (list(asks) for asks in tasks_of_rounds(plan.server_half(), members))
    earlier = {name: value for ask in first for name, value in ask.payload.items()}
    wanted = [(wanted_array(name, spec, ask), spec) for ask in second for name, spec in ask.wants.items()]
    up = [one for one, spec in wanted if not spec.optional or one.kind in cost.bytes_up]
    down = [
        CrossingArray(
            name, dtype_name(value), tuple(value.shape), _is_like(earlier.get(name), value), ask.phase
        )
        for ask in second
        for name, value in ask.payload.items()
    ]
    return RoundArrays(_sized(plan, up, cost.bytes_up, "up"), _sized(plan, down, cost.bytes_down, "down"))


def tasks_of_rounds(
    server: ServerHalf, members: Sequence[Member], rounds: int = 2
) -> Iterator[Iterator[Ask]]:
    """Yield the tasks of each round; all tasks of a round must be taken before the next round."""
    for number in range(1, rounds + 1):
        server.fleet = len(members)
        server.begin(number, members)
        yield _tasks(server.round(), members)


def _tasks(asking: Round, members: Sequence[Member]) -> Iterator[Ask]:
    with contextlib.suppress(StopIteration):
        ask = next(asking)
        while True:
            yield ask
            ask = asking.send([Reply(one.device, one.examples, smallest_answer(ask)) for one in members])


def cheap_settings(plan: Plan) -> dict[str, int]:
    """Return settings that make the computation short and do not change the arrays."""
    known = {field.name for field in fields(plan.load().Hyper)}
    return {name: 1 for name in ("server_epochs", "init_steps") if name in known}


def smallest_answer(ask: Ask) -> Payload:
    """Return an update of zeros, which a server half also accepts if it checks how the arrays fit each other."""
    return {
        name: _array(spec, ask.payload.get(name)) for name, spec in ask.wants.items() if not spec.optional
    }


def _array(spec: TensorSpec, sent: Tensor | None) -> Tensor:
    if sent is not None and tuple(sent.shape) == spec.shape:
        return sent
    shape = [spec.step or 2 if isinstance(dim, str) else dim for dim in spec.shape]
    dtype: torch.dtype = getattr(torch, spec.dtype)
    if spec.dtype == "int64" and spec.low == 0:
        return torch.arange(shape[0])
    return torch.full(shape, 1 if spec.low == 1 else 0, dtype=dtype)


def wanted_array(name: str, spec: TensorSpec, ask: Ask) -> CrossingArray:
    """Return an array of an update; a free length is at first its largest value."""
    shape = tuple(spec.most if isinstance(dim, str) else dim for dim in spec.shape)
    return CrossingArray(name, spec.dtype, shape, comes_back(spec, ask.payload.get(name)), ask.phase)


def _is_like(one: Tensor | None, other: Tensor) -> bool:
    return one is not None and (one.dtype, one.shape) == (other.dtype, other.shape)


def _sized(
    plan: Plan, arrays: Sequence[CrossingArray], sizes: Mapping[str, int], way: str
) -> tuple[CrossingArray, ...]:
    """Give the arrays of each kind as many rows as the cost states, if their bytes differ from the cost."""
    found: list[CrossingArray] = []
    for kind in sorted({one.kind for one in arrays} | sizes.keys()):
        own, size = [one for one in arrays if one.kind == kind], sizes.get(kind, 0)
        if sum(one.bytes for one in own) != size:
            own = [_with_rows(own[0], size)] if size and len(own) == 1 else []
        if sum(one.bytes for one in own) != size:
            raise UnknownArraysError(
                f"{plan.method} sends {kind} {way} in arrays whose shapes do not follow from its cost, {size:,} bytes"
            )
        found += own
    return tuple(found)


def _with_rows(one: CrossingArray, size: int) -> CrossingArray:
    row = math.prod(one.shape[1:]) * ITEM_BYTES[one.dtype]
    shape = (size // row, *one.shape[1:])
    return replace(one, shape=shape, in_broadcast=one.in_broadcast and shape == one.shape)
