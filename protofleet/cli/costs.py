"""Count the numbers that one device sends and receives in a round.

The settings are taken from papers that state how many numbers a device sends and receives.

Each count comes from a method's formula for its cost and from the shapes of a network. The network is made without
values, on torch's meta device. tests/methods/contract/test_cost.py compares the formulas with the sent bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from protofleet.methods.contract.catalog import load
from protofleet.methods.contract.cost import Sizes
from protofleet.methods.nets.catalog import build


@dataclass(frozen=True)
class CostRow:
    method: str
    network: str
    head: str = "linear"
    feature_size: int | None = None
    examples: int = 0
    clients: int = 1
    # The number of a device's own prototypes, if the method has several prototypes per class. The number of global
    # prototypes is the same.
    prototypes: int = 0

    def description(self) -> str:
        counts = {"samples": self.examples, "clients": self.clients if self.examples else 0}
        more = [f"{n:,} {name}" for name, n in {**counts, "prototypes": self.prototypes}.items() if n]
        return ", ".join([self.network + ("+mlp" if self.head == "mlp" else ""), *more])


@dataclass(frozen=True)
class Setting:
    title: str
    image: tuple[int, int, int]
    classes: int
    rows: tuple[CostRow, ...]  # The first row is the reference for the shares in the other rows.


SETTINGS = (
    Setting("FedLSA, Digits: anchors are 1.35 % on top of the model", (3, 32, 32), 10, (
        CostRow("fedavg", "cnn23"), CostRow("fedlsa", "cnn23"),
    )),
    Setting("FedPLCC, Digit-5: three prototypes a class, 0.31 % of the model", (3, 64, 64), 10, (
        CostRow("fedavg", "resnet10"), CostRow("fedplcc", "resnet10", prototypes=30),
    )),
    Setting("FedSA, CIFAR-10: 5,120 each way", (3, 32, 32), 10, (
        CostRow("fedavg", "cnn4"), CostRow("fedsa", "cnn4"),
    )),
    Setting("FedSA, CIFAR-100: 51,200, 5.5 % of FedAvg", (3, 32, 32), 100, (
        CostRow("fedavg", "cnn4"), CostRow("fedsa", "cnn4"),
    )),
    Setting("FedSA, Tiny-ImageNet: 102,400", (3, 64, 64), 200, (
        CostRow("fedavg", "cnn4"), CostRow("fedsa", "cnn4"),
    )),
    Setting("FedHP, MNIST: 582,026 against 10,240", (1, 28, 28), 10, (
        CostRow("fedavg", "cnn_mnist"), CostRow("fedhp", "cnn_mnist_conv"),
    )),
    Setting("FedHP, CIFAR-10 and SVHN: 725,952 against 16,000", (3, 32, 32), 10, (
        CostRow("fedavg", "cnn_fednh_small"), CostRow("fedhp", "cnn_fednh_conv"),
    )),
    Setting("FedHP, the same with FedNH's network as published", (3, 32, 32), 10, (
        CostRow("fedavg", "cnn_fednh"), CostRow("fedhp", "cnn_fednh_conv"),
    )),
    Setting("FedPall, Digits: 11,800 samples a device on average", (3, 32, 32), 10, (
        CostRow("fedavg", "resnet50", "mlp"), CostRow("fedpall", "resnet50", examples=11_800, clients=5),
    )),
    Setting("FedPall, Office: 507 samples a device on average", (3, 64, 64), 10, (
        CostRow("fedavg", "resnet50", "mlp"), CostRow("fedpall", "resnet50", examples=507, clients=4),
    )),
    Setting("FedPall, where its upload equals FedAvg's", (3, 64, 64), 10, (
        CostRow("fedavg", "resnet50", "mlp"), CostRow("fedpall", "resnet50", examples=12_122, clients=5),
    )),
)  # fmt: skip


@dataclass(frozen=True)
class CostLine:
    row: CostRow
    up: Mapping[str, int]
    down: Mapping[str, int]


def lines(setting: Setting) -> Iterator[CostLine]:
    for row in setting.rows:
        cost_of = load(row.method).cost
        assert cost_of is not None, f"{row.method} does not say what it costs"
        cost = cost_of(sizes(setting, row))
        yield CostLine(row, cost.up, cost.down)


def sizes(setting: Setting, row: CostRow) -> Sizes:
    with torch.device("meta"):
        model = build(
            row.network, classes=setting.classes, image=setting.image,
            feature_size=row.feature_size, head=row.head,
        )  # fmt: skip
    return Sizes(model, setting.classes, row.examples, row.clients, row.prototypes, row.prototypes)


def table() -> str:
    """Return a table of all settings and their rows. A share is relative to the first row of its setting."""
    found = [f"{'':45}{'up':>12}{'':>8}{'down':>12}"]
    for setting in SETTINGS:
        found += ["", setting.title]
        reference: CostLine | None = None
        for line in lines(setting):
            reference = reference or line
            found.append(text(line, reference))
    found += ["", NOTE]
    return "\n".join(found)


def as_objects() -> list[dict[str, Any]]:
    return [
        {
            "setting": setting.title,
            "rows": [
                {
                    "method": one.row.method, "network": one.row.network, "clients": one.row.clients,
                    "up": dict(one.up), "down": dict(one.down),
                }
                for one in lines(setting)
            ],
        }
        for setting in SETTINGS
    ]  # fmt: skip


def text(line: CostLine, reference: CostLine) -> str:
    cells = ""
    for own, other in ((line.up, reference.up), (line.down, reference.down)):
        total, whole = sum(own.values()), sum(other.values())
        cells += f"{total:>12,}{total / whole:>8.2%}"
    first = f"  {line.row.method:9}{line.row.description():34}{cells}"
    if line is reference:
        return first
    ways = {"up": line.up, "down": line.down}
    parts = [
        f"{way} {', '.join(f'{kind} {n:,}' for kind, n in kinds.items() if n)}" for way, kinds in ways.items()
    ]
    return "\n".join([first, *(f"{'':13}{part}" for part in parts)])


NOTE = (
    "The table counts the numbers of one participant in a round after its first round. A label, an id or a count\n"
    "is one number. BatchNorm's statistics are sent, but no paper counts them. Runs measure bytes: protofleet report"
)
