"""An overview of each method, made from the first line of its file, its settings and its cost."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from protofleet.methods.contract.base import Method
from protofleet.methods.contract.cost import Cost, Sizes
from protofleet.methods.contract.plan import Network, Plan
from protofleet.methods.contract.public import PublicSet

# The first line of a method's file, such as "FedTGP (Zhang et al., AAAI 2024): FedProto, whose server ...".
FIRST_LINE = re.compile(r"(?P<title>[\w+-]+)(?: \((?P<source>[^)]+)\))?(?P<more>[^:]*): (?P<idea>.+)")
NETWORKS: Mapping[str, str] = {
    "network": "one for all",
    "head": "any, with the same kind of head",
    "embedding": "any, with an embedding of the same size",
    "nothing": "any",
}


@dataclass(frozen=True)
class NoSamples:
    """Empty data for a client half. Only the networks of this client half are used."""

    x: Tensor = field(default_factory=lambda: torch.zeros(0))
    y: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))


@dataclass(frozen=True)
class Reference:
    """The example run for which the costs of all methods are counted, so that the costs can be compared."""

    classes: int = 10
    size: int = 32
    network: Network = Network("cnn_bn", feature_size=512)  # noqa: RUF009 - it is frozen
    devices: int = 6  # Number of devices; all of them take part, and each holds every class.
    examples: int = 240
    groups: int = 3  # Prototypes per class, for methods with several prototypes per class.

    def sizes(self, plan: Plan) -> Sizes:
        """Return the sizes that decide the cost of a round after the first round.

        The network is taken from the client half, which may have changed the network of the plan.
        """
        rows, model = self.groups * self.classes, plan.client_half(NoSamples(), "").model
        return Sizes(
            model, held=self.classes, examples=self.examples, clients=self.devices,
            local_prototypes=rows, global_prototypes=rows, public=PublicSet().batches,
        )  # fmt: skip

    def describe(self) -> str:
        return (
            f"network {self.network.name} with {self.network.feature_size} features on {self.size} x {self.size} "
            f"pixels, {self.classes} classes,\n{self.devices} devices with {self.examples} samples of all classes, "
            f"{self.groups} prototypes for each class (in methods with several), and a\nround after the first"
        )


@dataclass(frozen=True)
class Overview:
    name: str
    title: str
    source: str  # Authors, venue and year.
    idea: str
    method: Method
    cost: Cost
    # Possible values of each setting that has a fixed list of values. The default value is first.
    variants: Mapping[str, tuple[str, ...]]

    @property
    def up(self) -> int:
        return sum(self.cost.up.values())

    @property
    def down(self) -> int:
        return sum(self.cost.down.values())

    @property
    def bytes_up(self) -> int:
        return sum(self.cost.bytes_up.values())

    @property
    def bytes_down(self) -> int:
        return sum(self.cost.bytes_down.values())

    @property
    def networks(self) -> str:
        return NETWORKS[self.method.alike]


def overview(name: str, reference: Reference | None = None) -> Overview:
    """Return the overview of a method.

    Raise LookupError if there is no such method, and ValueError if the first line of its file does not have the
    form of FIRST_LINE.
    """
    reference = reference or Reference()
    plan = Plan(name, reference.classes, 1, size=reference.size, network=reference.network)
    method = plan.variant
    doc = (sys.modules[f"protofleet.methods.{name}"].__doc__ or "").strip().partition("\n")[0]
    if not (found := FIRST_LINE.fullmatch(doc)):
        raise ValueError(
            f"methods/{name}.py begins with {doc!r}, but it must begin with 'Name (authors, venue year): idea'"
        )
    cost = method.cost(reference.sizes(plan)) if method.cost else Cost()
    return Overview(
        name, found["title"], found["source"] or "", found["idea"], method, cost, variants(method)
    )


def variants(method: Method) -> Mapping[str, tuple[str, ...]]:
    hints = get_type_hints(method.Hyper)
    found = {f.name: (f.default, choices(hints[f.name])) for f in fields(method.Hyper)}
    return {
        name: (default, *(word for word in words if word != default))
        for name, (value, words) in found.items()
        if words and (default := shown(value))
    }


def choices(hint: object) -> tuple[str, ...]:
    """Return the possible values of a setting, or nothing if the setting is a number."""
    if get_origin(hint) is Literal:
        return tuple(map(shown, get_args(hint)))
    if get_origin(hint) in (Union, types.UnionType):
        return choices(get_args(hint)[0])
    return ("true", "false") if hint is bool else ()


def shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
