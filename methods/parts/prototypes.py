"""Class prototypes, which methods keep, send and compare with embeddings.

Prototypes are kept as a table [C, D] with a mask [C] of the classes that are known. They are sent as rows [J, D]
with their labels [J]. A device also sends the count of samples for each row [J]. D is the size of the
embedding, or the `width` of the vectors that a method uses instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
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

# The kinds that METHOD declares for `class_rows` and for `held_rows`.
ROWS: Final = ("prototypes", "labels")
HELD_ROWS: Final = (*ROWS, "counts")
# The largest number in a feature or a prototype of any network; its square is far from infinity.
LARGEST_NUMBER = 1e6
# The largest number of examples of one class on one device. With this limit, sums stay exact.
MOST_EXAMPLES = 2**31 - 1


def table_of(payload: Payload, model: Net, width: int | None = None) -> tuple[Tensor, Tensor]:
    """Return a table [C, D] and a mask [C] from rows with labels; an empty payload gives no known class."""
    if not has_rows(payload):
        empty = next(model.parameters()).new_zeros(model.classes, width or model.embedding_size)
        return empty.detach(), torch.zeros(model.classes, dtype=torch.bool, device=empty.device)
    demand_arrays(payload, row_specs(model, width))
    means, counts = class_means(payload["prototypes"].detach(), payload["labels"], model.classes)
    return means, counts > 0


def has_rows(payload: Payload) -> bool:
    """Return whether the payload has rows or their labels; if it has only one of the two, `table_of` fails."""
    return "prototypes" in payload or "labels" in payload


def row_specs(
    model: Net, width: int | None = None, rows: str = "prototypes", labels: str = "labels"
) -> dict[str, TensorSpec]:
    """Return the specifications of rows with labels; a class may have any number of rows."""
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    return {
        rows: TensorSpec(("rows", width or model.embedding_size), dtype, most=MOST_EXAMPLES),
        labels: TensorSpec(("rows",), "int64", low=0, high=model.classes - 1, most=MOST_EXAMPLES),
    }


def bounded(spec: TensorSpec) -> TensorSpec:
    """Return the specification with bounds for its numbers; a lower bound that it has does not change."""
    return replace(spec, low=-LARGEST_NUMBER if spec.low is None else spec.low, high=LARGEST_NUMBER)


def table_specs(model: Net, *names: str) -> dict[str, TensorSpec]:
    """Return the specifications of tables with a row for each class."""
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    return dict.fromkeys(names, TensorSpec((model.classes, model.embedding_size), dtype))


def known_rows(prototypes: Tensor, known: Tensor) -> dict[str, Tensor]:
    """Return the table as rows with labels, or nothing if no class is known."""
    return class_rows(prototypes, known) if known.any() else {}


def class_rows(table: Tensor, held: Tensor) -> dict[str, Tensor]:
    return {"prototypes": table[held], "labels": held.nonzero().squeeze(1)}


def held_rows(means: Tensor, counts: Tensor) -> dict[str, Tensor]:
    """Return the arrays in which a device sends its class means [C, D].

    The arrays have a row for each class that the device holds, with the count of its samples.
    """
    held = counts > 0
    return {**class_rows(means, held), "counts": counts[held]}


def held_row_wants(
    model: Net, largest: float | None = None, width: int | None = None
) -> Mapping[str, TensorSpec]:
    """Return the specifications of `held_rows`, with no number larger than `largest`."""
    counts = TensorSpec(("held",), "int64", low=1, high=MOST_EXAMPLES, most=model.classes, of_examples=True)
    return {**class_row_wants(model, largest, width), "counts": counts}


def class_row_wants(
    model: Net, largest: float | None = None, width: int | None = None, *, row_per_example: bool = False
) -> dict[str, TensorSpec]:
    """Return the specifications of `class_rows`.

    If no counts are sent with the rows, `row_per_example` limits the number of rows to the number of samples.
    """
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
    """Return a device's rows as a table; rows of the same class are pooled, so each class counts once."""
    return class_means(payload["prototypes"], payload["labels"], classes, payload["counts"])


def margin_figures(points: Tensor) -> Mapping[str, float]:
    """Return the distance of each class's row to the nearest other row, and the mean distance, for `monitor`."""
    found = margins(points)
    by_class = {f"margin.{label}": value for label, value in enumerate(found.tolist())}
    return {**by_class, "margin.mean": float(found.mean())}


class SeenFeatures:
    """The sums of the features of each class that were computed during training."""

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
        """Return the means [C, D] in float64; the row of a class without samples has no meaning."""
        return means_of(self.sums, self.counts)
