"""The records that a server half keeps of devices: a weight that grows with distances, and signs of past updates.

The table of a device counts the device's past updates that were 0 or more, per parameter, in 4 bytes each. A device
that finds no room for a table has an empty one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import fsum
from typing import Final, TypeAlias

import torch
from torch import Tensor

from protofleet.methods.contract.base import Payload
from protofleet.methods.maths.consistency import next_step
from protofleet.methods.nets.base import Net
from protofleet.methods.parts.parameters import count_learned
from protofleet.methods.parts.state import names_from_tensor, names_to_tensor
from protofleet.methods.parts.weights import torch_device_of

COUNT: Final = 4  # Bytes of a number in a table, an int32.


@dataclass(frozen=True)
class Known:
    """The record of a device."""

    weight: float
    rises: Tensor  # The table of signs.
    rounds: int = 0  # Number of past updates in the table.
    step: float = 0.0  # The last step of the weight.
    distance: float = 0.0  # The last distance from the global model.


Records: TypeAlias = Mapping[str, Known]


def table_sizes(model: Net, devices: int) -> int:
    """Return the bytes of the tables of this number of devices."""
    return COUNT * devices * count_learned(model)


def new_table(model: Net, known: Records, most: int) -> Tensor:
    """Return a table of zeros, or an empty table if the tables would have more than `most` bytes with it."""
    tables = sum(len(one.rises) > 0 for one in known.values())
    return zeros(model, count_learned(model) if table_sizes(model, tables + 1) <= most else 0)


def zeros(model: Net, numbers: int) -> Tensor:
    return torch.zeros(numbers, dtype=torch.int32, device=torch_device_of(model))


def reweighed(known: Records, distances: Mapping[str, float], beta: float) -> dict[str, Known]:
    """Return the records after a round in which these devices had these distances."""
    changed = {device: replace(known[device], distance=distance) for device, distance in distances.items()}
    found = {**known, **changed}
    total = fsum(one.distance for one in found.values())
    for device, distance in distances.items():
        one = found[device]
        step = next_step(one.step, distance, total, beta)
        found[device] = replace(one, step=step, weight=one.weight + step)
    return found


def records_to_arrays(known: Records) -> dict[str, Tensor]:
    """Return the records as arrays. The tables are not copied, because a table is replaced and never changed."""
    numbers = [[one.weight, one.rounds, one.step, one.distance] for one in known.values()]
    tables = {f"rises.{device}": one.rises for device, one in known.items() if len(one.rises)}
    numbers_of_all = torch.tensor(numbers, dtype=torch.float64).reshape(-1, 4)
    return {**tables, "devices": names_to_tensor([*known]), "numbers": numbers_of_all}


def records_in(state: Payload, model: Net) -> dict[str, Known]:
    """Return the records that `records_to_arrays` has written."""
    found, none = {}, zeros(model, 0)
    rows = zip(names_from_tensor(state["devices"]), state["numbers"].tolist(), strict=True)
    for device, (weight, rounds, step, distance) in rows:
        found[device] = Known(weight, state.get(f"rises.{device}", none), int(rounds), step, distance)
    return found
