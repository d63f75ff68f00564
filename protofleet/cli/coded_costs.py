"""Show the bytes that a device sends and receives in a round, before and after coding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from protofleet.coordinator.coded_cost import CodedCost, WayCost, coded_cost
from protofleet.edge_client.data.shard import Shards
from protofleet.edge_client.data.share_sizes import share_sizes
from protofleet.lab.local.experiment import Experiment, read_experiment
from protofleet.methods.contract.base import Member
from protofleet.methods.contract.overview import Reference
from protofleet.methods.contract.plan import Plan
from protofleet.methods.contract.round_arrays import UnknownArraysError
from protofleet.protocol.settings.codec import CodecSettings
from protofleet.protocol.settings.reader import SettingsError

TITLE: Final = (
    "Bytes of arrays that a device sends (up) and receives (down) in a round, before and after coding."
)
NOTE: Final = (
    "at most: no round sends more; zlib, frequent numbers and unchanged arrays may make it less. expected: if the\n"
    "numbers that `ternary` keeps lie at random; \"-\" if the size depends on the numbers. These are computed, not\n"
    "measured. Down: for a device that has the broadcast of the round before."
)  # fmt: skip
ONCE: Final = (
    "{names}: each device sends this once in a run. A device that joins later costs its own upload,\n"
    "and one new head for each device: {head}."
)


Costs = Sequence[tuple[str, CodedCost]]  # The cost of each method, with the name of the method.


def once_text(plans: Sequence[Plan], reference: Reference) -> str:
    """Return what a late device costs with the methods that ask each device once; "" if there is no such method."""
    found = [plan for plan in plans if plan.load().Server.keeps_answers]
    costs = [(plan.method, plan.variant.cost and plan.variant.cost(reference.sizes(plan))) for plan in found]
    heads = [f"{sum(cost.bytes_last.values()):,} bytes ({name})" for name, cost in costs if cost]
    names = ", ".join(plan.method for plan in found)
    return ONCE.format(names=names, head=", ".join(heads)) if heads else ""


def cost_of_plan(plan: Plan, reference: Reference) -> CodedCost:
    """Return the bytes of a device in a round after the first.

    All devices of `reference` take part, and each of them has samples of all classes.
    """
    each = reference.examples // reference.classes
    members = [
        Member(f"device-{place}", reference.examples, (each,) * reference.classes)
        for place in range(reference.devices)
    ]
    try:
        return coded_cost(plan, members, reference.sizes(plan))
    except UnknownArraysError as error:
        raise SettingsError(
            f"the bytes cannot be computed: {error}; run it, and see protofleet report"
        ) from None


def of_experiment(path: Path, codec: str) -> tuple[str, Costs, str]:
    """Return a description of the experiment, the cost of its device with the most samples, and `once_text`."""
    experiment = read_experiment(path, [f"codec={codec}"] if codec else [])
    examples, plan = most_examples(experiment), experiment.plan
    reference = Reference(classes=plan.classes, devices=len(experiment.shards), examples=examples)
    words = (
        f"Run: {path.name}, {plan.method} with network {plan.network.name}, {reference.devices} devices with at "
        f"most {examples:,} samples\nfor training, {reference.groups} prototypes for each class (in methods with "
        f"several), codec {codec_text(experiment.codec)}"
    )
    return words, [(plan.method, cost_of_plan(plan, reference))], once_text([plan], reference)


def most_examples(experiment: Experiment) -> int:
    shards = Shards()
    wholes = {replace(settings, part=0) for settings in experiment.shards.values()}
    return max(size.train for whole in wholes for size in share_sizes(whole, shards))


def codec_text(codec: object) -> str:
    """Return the setting `codec` in words."""
    if codec is None:
        return "not set (nothing is rounded)"
    return "with own stages" if isinstance(codec, CodecSettings) else str(codec)


def of_methods(names: Sequence[str], codec: Any) -> tuple[str, Costs, str]:
    """Return a description of the run that all methods are computed for, the cost of each method, and `once_text`."""
    reference = Reference()
    plans = [
        Plan(name, reference.classes, 2, size=reference.size, network=reference.network) for name in names
    ]
    found = [(plan.method, cost_of_plan(plan.with_codec(codec or None), reference)) for plan in plans]
    words = f"Run: {reference.describe()}, codec {codec_text(codec or None)}"
    return words, found, once_text(plans, reference)


def text(about: str, costs: Costs, once: str = "") -> str:
    head = f"{'':14}{'before':>13}{'at most':>13}{'expected':>13}"
    found = [TITLE, about, "", head]
    for name, cost in costs:
        found += [line(f"{name} up", cost.up), line(f"{'':{len(name)}} down", cost.down)]
    return "\n".join([*found, "", NOTE, *filter(None, [once])])


def line(name: str, way: WayCost) -> str:
    expected = "-" if way.expected is None else f"{way.expected:,}"
    return f"{name:14}{way.before:>13,}{way.most:>13,}{expected:>13}"
