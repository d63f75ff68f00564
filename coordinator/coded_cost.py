"""Compute the bytes of arrays that a device sends and receives in a round, before and after coding.

The arrays of a round come from the method (methods/contract/round_arrays.py), and the sizes of coded arrays from
protocol/coding/sizes.py. Nothing is trained. The sizes of some forms depend on the numbers. Then the result is the
largest size, and the expected size where a formula gives it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from protofleet.methods.contract.base import Member
from protofleet.methods.contract.cost import Sizes
from protofleet.methods.contract.plan import Plan
from protofleet.methods.contract.round_arrays import CrossingArray, UnknownArraysError, round_arrays
from protofleet.protocol.coding.sizes import expected_bytes_of_kind, most_bytes_of_kind
from protofleet.protocol.settings.codec import CodecStage


@dataclass(frozen=True)
class WayCost:
    """The bytes of arrays in one direction."""

    before: int
    most: int
    expected: int | None  # None if the size depends on the numbers.


@dataclass(frozen=True)
class CodedCost:
    up: WayCost
    down: WayCost


def coded_cost(plan: Plan, members: Sequence[Member], sizes: Sizes) -> CodedCost:
    """Return the bytes of one device in a round after the first, in which all `members` take part.

    Raise UnknownArraysError if the method states no cost, or if the shapes of its arrays do not follow from the cost.
    """
    if (cost_of := plan.variant.cost) is None:
        raise UnknownArraysError(
            f"{plan.method} states no cost; add a function to its METHOD: Method(..., cost=cost)"
        )
    if plan.public is not None:
        sizes = replace(sizes, public=plan.public.batches)
    if plan.variant.mutual:
        sizes = replace(sizes, mutual=plan.mutual_model())
    arrays, codec = round_arrays(plan, members, cost_of(sizes)), plan.coding
    return CodedCost(
        way_cost(arrays.up, codec.up if codec else {}), way_cost(arrays.down, codec.down if codec else {})
    )


def way_cost(arrays: Sequence[CrossingArray], stages: Mapping[str, CodecStage]) -> WayCost:
    before = sum(one.bytes for one in arrays)
    most: int = sum(one.bytes for one in arrays if one.kind not in stages)
    expected: int | None = most
    for phase, kind in sorted({(one.phase, one.kind) for one in arrays if one.kind in stages}):
        own = [one for one in arrays if (one.phase, one.kind) == (phase, kind)]
        most += most_bytes_of_kind(own, stages[kind])
        found = expected_bytes_of_kind(own, stages[kind])
        expected = None if expected is None or found is None else expected + found
    return WayCost(before, most, expected)
