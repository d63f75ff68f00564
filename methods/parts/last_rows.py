"""The class rows that each device of a run has sent last, in the order of device names and then of classes.

While a device takes no part, its network does not change. So its last rows still describe its network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from protofleet.methods.contract.base import Payload, Reply
from protofleet.methods.contract.received import WrongArraysError, demand_arrays
from protofleet.methods.contract.wants import TensorSpec
from protofleet.methods.maths.means import ClassMeans, class_means
from protofleet.methods.nets.base import Net
from protofleet.methods.parts.prototypes import row_specs
from protofleet.methods.parts.state import names_from_tensor, names_to_tensor
from protofleet.methods.parts.weights import torch_device_of

SETS: Final = ("sets", "held")  # The kinds that METHOD declares for the rows of all devices.


@dataclass(frozen=True)
class Rows:
    """Rows in the form of Samples."""

    x: Tensor  # [R, D]
    y: Tensor  # [R]: the class of each row


class LastRows:
    def __init__(self, model: Net) -> None:
        self._model = model
        self._tables: dict[str, ClassMeans] = {}  # Device -> its rows [C, D], and a mask [C] of its classes.

    def take(self, replies: Sequence[Reply]) -> None:
        """Replace the rows of these devices by the rows that they have sent now.

        Rows of the same class are averaged, so each device has one row for each class.
        """
        for reply in replies:
            rows, counts = class_means(
                reply.payload["prototypes"], reply.payload["labels"], self._model.classes
            )
            self._tables[reply.device] = rows, counts > 0

    def devices(self) -> list[str]:
        return sorted(device for device, (_, held) in self._tables.items() if held.any())

    def tables(self) -> list[ClassMeans]:
        """Return the rows [C, D] and the mask [C] of each device that has sent a row."""
        return [self._tables[device] for device in self.devices()]

    def held(self) -> Tensor:
        """Return a mask [K, C], which is true if the device has a row for the class."""
        if found := [held for _, held in self.tables()]:
            return torch.stack(found)
        return torch.zeros(0, self._model.classes, dtype=torch.bool, device=torch_device_of(self._model))

    def rows(self) -> Rows:
        found = [rows[held] for rows, held in self.tables()]
        if not found:
            found = [next(self._model.parameters()).detach().new_zeros(0, self._model.embedding_size)]
        return Rows(torch.cat(found), self.held().nonzero()[:, 1])

    def sets(self) -> dict[str, Tensor]:
        """Return the arrays `sets` [R, D] and `held` [K, C], which together have the rows of all devices."""
        return {"sets": self.rows().x, "held": self.held()}

    def state(self) -> dict[str, Tensor]:
        return {**self.sets(), "devices": names_to_tensor(self.devices())}

    def restore(self, state: Payload) -> None:
        held = state["held"].to(torch_device_of(self._model))
        pieces = torch.split(state["sets"].to(held.device), held.sum(dim=1).tolist())
        self._tables = {}
        for device, own, piece in zip(names_from_tensor(state["devices"]), held, pieces, strict=True):
            rows = piece.new_zeros(self._model.classes, self._model.embedding_size)
            rows[own] = piece
            self._tables[device] = rows, own


def sets_in(payload: Payload, model: Net) -> tuple[Tensor, Tensor] | None:
    """Return the arrays of `LastRows.sets` in a payload, or None if the payload has none of them."""
    if not any(name in payload for name in SETS):
        return None
    rows = replace(row_specs(model)["prototypes"], shape=("rows", model.embedding_size))
    held = TensorSpec(("devices", model.classes), "bool", most=rows.most)
    demand_arrays(payload, {"sets": rows, "held": held})
    sets, marks = payload["sets"].detach(), payload["held"]
    if (told := int(marks.sum())) != len(sets):
        raise WrongArraysError(f"sets has {len(sets)} rows, but held marks {told}")
    return sets, marks
