"""Class prototypes as methods keep them, send them and compare with them.

Kept: a table [C, D], and which classes of it are known [C]. Sent: rows [J, D] with their labels [J], and by a device
with the counts [J] of the samples behind them. D is the embedding's size, or the `width` of what a method has in its
place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from protofleet.methods.contract.base import Payload
from protofleet.methods.contract.received import demand_arrays
from protofleet.methods.contract.wants import TensorSpec
from protofleet.methods.maths.geometry import margins
from protofleet.methods.maths.means import ClassMeans, class_means, class_sums, means_of
from protofleet.methods.nets.base import Net
from protofleet.methods.parts.weights import torch_device_of

# What METHOD declares of `class_rows` and of `held_rows`.
ROWS: Final = ("prototypes", "labels")
HELD_ROWS: Final = (*ROWS, "counts")
LARGEST_NUMBER = 1e6  # in a feature or a prototype, of whatever network: squares of it stay far from infinity
MOST_EXAMPLES = 2**31 - 1  # of one class on one device; sums stay exact


def table_of(payload: Payload, model: Net, width: int | None = None) -> tuple[Tensor, Tensor]:
    """[C, D] and a mask [C] from rows with labels; nothing is known of an empty payload."""
    if not has_rows(payload):
        empty = next(model.parameters()).new_zeros(model.classes, width or model.embedding_size)
        return empty.detach(), torch.zeros(model.classes, dtype=torch.bool, device=empty.device)
    demand_arrays(payload, row_specs(model, width))
    means, counts = class_means(payload["prototypes"].detach(), payload["labels"], model.classes)
    return means, counts > 0


def has_rows(payload: Payload) -> bool:
    """Tell whether rows or their labels came: one without the other is wrong."""
    return "prototypes" in payload or "labels" in payload


def row_specs(
    model: Net, width: int | None = None, rows: str = "prototypes", labels: str = "labels"
) -> dict[str, TensorSpec]:
    """Return what rows with labels have to be, however many there are of a class."""
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    return {
        rows: TensorSpec(("rows", width or model.embedding_size), dtype, most=MOST_EXAMPLES),
        labels: TensorSpec(("rows",), "int64", low=0, high=model.classes - 1, most=MOST_EXAMPLES),
    }


def table_specs(model: Net, *names: str) -> dict[str, TensorSpec]:
    """Return what tables with a row for each class have to be."""
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    return dict.fromkeys(names, TensorSpec((model.classes, model.embedding_size), dtype))


def known_rows(prototypes: Tensor, known: Tensor) -> dict[str, Tensor]:
    """The table as rows with labels; nothing where no class is known."""
    return class_rows(prototypes, known) if known.any() else {}


def class_rows(table: Tensor, held: Tensor) -> dict[str, Tensor]:
    return {"prototypes": table[held], "labels": held.nonzero().squeeze(1)}


def held_rows(means: Tensor, counts: Tensor) -> dict[str, Tensor]:
    """What a device sends of its class means [C, D]: the classes that it holds, with their counts."""
    held = counts > 0
    return {**class_rows(means, held), "counts": counts[held]}


def held_row_wants(
    model: Net, largest: float | None = None, width: int | None = None
) -> Mapping[str, TensorSpec]:
    """What must come back: `held_rows`, with no number beyond `largest`."""
    counts = TensorSpec(("held",), "int64", low=1, high=MOST_EXAMPLES, most=model.classes, of_examples=True)
    return {**class_row_wants(model, largest, width), "counts": counts}


def class_row_wants(
    model: Net, largest: float | None = None, width: int | None = None, *, row_per_example: bool = False
) -> dict[str, TensorSpec]:
    """`class_rows`; `row_per_example` bounds them where no counts come."""
    classes, low = model.classes, None if largest is None else -largest
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    return {
        "prototypes": TensorSpec(
            ("held", width or model.embedding_size), dtype, low=low, high=largest, most=classes,
            row_per_example=row_per_example,
        ),
        "labels": TensorSpec(("held",), "int64", low=0, high=classes - 1, most=classes),
    }  # fmt: skip


def class_means_in(payload: Payload, classes: int) -> ClassMeans:
    """A device's rows as a table. A class that it names twice is pooled, so that it counts once."""
    return class_means(payload["prototypes"], payload["labels"], classes, payload["counts"])


def margin_figures(points: Tensor) -> Mapping[str, float]:
    """For `monitor`: how far the nearest neighbour of each class's point is, and the mean of that."""
    found = margins(points)
    by_class = {f"margin.{label}": value for label, value in enumerate(found.tolist())}
    return {**by_class, "margin.mean": float(found.mean())}


class SeenFeatures:
    """Sums of the features of each class, as they were seen while training."""

    def __init__(self, model: Net, width: int | None = None) -> None:
        self._model, self._width = model, width or model.embedding_size
        self.clear()

    def clear(self) -> None:
        shape, torch_device = (self._model.classes, self._width), torch_device_of(self._model)
        self.sums = torch.zeros(shape, dtype=torch.float64, device=torch_device)
        self.counts = torch.zeros(shape[0], dtype=torch.int64, device=torch_device)

    def add(self, z: Tensor, y: Tensor) -> None:
        sums, counts = class_sums(z, y, self._model.classes)
        self.sums, self.counts = self.sums + sums, self.counts + counts

    def means(self) -> Tensor:
        """[C, D], in float64; a class without samples has a row that means nothing."""
        return means_of(self.sums, self.counts)
