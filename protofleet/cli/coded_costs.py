"""Compute the bytes that a device sends and receives in a round, before and after coding.

The arrays of a round come from the method (`lab/contract/round_arrays.py`), and the sizes of coded arrays from
`protocol/coding/sizes.py`. Nothing is trained. The sizes of some forms depend on the numbers. Then the result is the
largest size, and the expected size where a formula gives it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from protofleet.edge_client.data.shard import Shards
from protofleet.edge_client.data.share_sizes import share_sizes
from protofleet.lab.contract.round_arrays import CrossingArray, round_arrays
from protofleet.lab.contract.worlds import ContractError
from protofleet.lab.local.experiment import Experiment, read_experiment
from protofleet.methods.contract.base import Member
from protofleet.methods.contract.overview import Reference
from protofleet.methods.contract.plan import Plan
from protofleet.protocol.coding.sizes import ExpectedArray, expected_bytes_of_kind, most_bytes_of_kind
from protofleet.protocol.settings.codec import CodecSettings, CodecStage
from protofleet.protocol.settings.reader import SettingsError

TITLE: Final = (
    "Bytes of arrays that a device sends (up) and receives (down) in a round, before and after coding."
)
NOTE: Final = (
    "at most: no round sends more; zlib, frequent numbers and unchanged arrays may make it less. expected: if the\n"
    "numbers that `ternary` keeps lie at random; \"-\" if the size depends on the numbers. These are computed, not\n"
    "measured. Down: for a device that has the broadcast of the round before."
)  # fmt: skip


@dataclass(frozen=True)
class WayCost:
    """The bytes of arrays in one direction."""

    before: int
    most: int
    expected: int | None  # None if the size depends on the numbers.


@dataclass(frozen=True)
class CodedCost:
    name: str
    up: WayCost
    down: WayCost


def coded_cost(name: str, plan: Plan, reference: Reference) -> CodedCost:
    """Return the bytes of a device in a round after the first.

    All devices of `reference` take part, and each of them has samples of all classes.
    """
    if (cost_of := plan.variant.cost) is None:
        raise SettingsError(f"{name} states no cost; add a function to its METHOD: Method(..., cost=cost)")
    each = reference.examples // reference.classes
    members = [
        Member(f"device-{place}", reference.examples, (each,) * reference.classes)
        for place in range(reference.devices)
    ]
    sizes = reference.sizes(plan)
    if plan.public is not None:
        sizes = replace(sizes, public=plan.public.batches)
    if plan.variant.mutual:
        sizes = replace(sizes, mutual=plan.mutual_model())
    try:
        arrays = round_arrays(plan, members, cost_of(sizes))
    except ContractError as error:
        raise SettingsError(
            f"the bytes cannot be computed: {error}; run it, and see protofleet report"
        ) from None
    codec = plan.coding
    return CodedCost(
        name,
        way_cost(arrays.up, codec.up if codec else {}),
        way_cost(arrays.down, codec.down if codec else {}),
    )


def way_cost(arrays: Sequence[CrossingArray], stages: Mapping[str, CodecStage]) -> WayCost:
    before = sum(one.bytes for one in arrays)
    most: int = sum(one.bytes for one in arrays if one.kind not in stages)
    expected: int | None = most
    for phase, kind in sorted({(one.phase, one.kind) for one in arrays if one.kind in stages}):
        own = [
            ExpectedArray(one.name, one.dtype, one.shape, one.in_broadcast)
            for one in arrays
            if (one.phase, one.kind) == (phase, kind)
        ]
        most += most_bytes_of_kind(own, stages[kind])
        found = expected_bytes_of_kind(own, stages[kind])
        expected = None if expected is None or found is None else expected + found
    return WayCost(before, most, expected)


def of_experiment(path: Path, codec: str) -> tuple[str, list[CodedCost]]:
    """Return a description of the experiment, and the cost of its device with the most samples."""
    experiment = read_experiment(path, [f"codec={codec}"] if codec else [])
    examples, plan = most_examples(experiment), experiment.plan
    reference = Reference(classes=plan.classes, devices=len(experiment.shards), examples=examples)
    words = (
        f"Run: {path.name}, {plan.method} with network {plan.network.name}, {reference.devices} devices with at "
        f"most {examples:,} samples\nfor training, {reference.groups} prototypes for each class (in methods with "
        f"several), codec {codec_text(experiment.codec)}"
    )
    return words, [coded_cost(plan.method, plan, reference)]


def most_examples(experiment: Experiment) -> int:
    shards = Shards()
    wholes = {replace(settings, part=0) for settings in experiment.shards.values()}
    return max(size.train for whole in wholes for size in share_sizes(whole, shards))


def codec_text(codec: object) -> str:
    """Return the setting `codec` in words."""
    if codec is None:
        return "not set (nothing is rounded)"
    return "with own stages" if isinstance(codec, CodecSettings) else str(codec)


def of_methods(names: Sequence[str], codec: Any) -> tuple[str, list[CodedCost]]:
    """Return a description of the run that all methods are computed for, and the cost of each method."""
    reference, found = Reference(), []
    for name in names:
        plan = Plan(name, reference.classes, 2, size=reference.size, network=reference.network)
        found.append(coded_cost(name, plan.with_codec(codec or None), reference))
    return f"Run: {reference.describe()}, codec {codec_text(codec or None)}", found


def text(about: str, costs: Sequence[CodedCost]) -> str:
    head = f"{'':14}{'before':>13}{'at most':>13}{'expected':>13}"
    found = [TITLE, about, "", head]
    for cost in costs:
        found += [line(f"{cost.name} up", cost.up), line(f"{'':{len(cost.name)}} down", cost.down)]
    return "\n".join([*found, "", NOTE])


def line(name: str, way: WayCost) -> str:
    expected = "-" if way.expected is None else f"{way.expected:,}"
    return f"{name:14}{way.before:>13,}{way.most:>13,}{expected:>13}"
