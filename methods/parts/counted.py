"""Private values of devices, of which the server knows the mean, though some answers are not used.

A device adds a change to its private value after each answer, and the server adds the same changes to the sum of all
values. But an answer may be late or refused, or its round may be repeated without it. Only the server half knows
which answers it has used. So it sends a table with the round of each device's newest used answer. A device keeps its
values after its last answers, and continues from the value that the table names.

A value has one tensor for each parameter that is sent, and is 0 before the first answer. Every device gets the whole
table, which has a hash in place of each name. So a device that knows a name can find when its answer was last used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import torch
from torch import Tensor

from protofleet.methods.contract.base import Payload, Reply
from protofleet.methods.contract.liveness import report_progress
from protofleet.methods.contract.received import demand_arrays
from protofleet.methods.contract.wants import TensorSpec, like
from protofleet.methods.nets.base import Net
from protofleet.methods.parts.weights import sent_parameters

Value: TypeAlias = Mapping[str, Tensor]

COUNTED: Final = ("counted",)  # The kinds that METHOD declares for the table.
SPECS: Final = {"counted": TensorSpec(("devices", 2), "int64", most=1_000_000)}


class Counted:
    """The devices of which the server half has ever used an answer, each with the round of its newest one."""

    def __init__(self) -> None:
        self._rounds: dict[int, int] = {}  # Id of a device -> round.

    def add(self, devices: Iterable[str], number: int) -> None:
        self._rounds |= {id_of(device): number for device in devices}

    def __len__(self) -> int:
        return len(self._rounds)

    def __contains__(self, device: str) -> bool:
        return id_of(device) in self._rounds

    def table(self) -> dict[str, Tensor]:
        """Return rows (id, round) in the order of the ids; before the first answer there is no table."""
        return {"counted": torch.tensor(sorted(self._rounds.items()), dtype=torch.int64)} if self else {}

    def restore(self, state: Payload) -> None:
        self._rounds = dict(state["counted"].tolist()) if "counted" in state else {}


def id_of(device: str) -> int:
    """Return 8 bytes of a hash of the name, because all names must have the same size in a table."""
    return int.from_bytes(hashlib.sha256(device.encode()).digest()[:8], "little", signed=True)


def last_used(payload: Payload, device: str) -> int:
    """Return the round of the device's newest used answer, as a broadcast tells it; 0 if there is none."""
    if "counted" not in payload:
        return 0
    demand_arrays(payload, SPECS)
    table = payload["counted"]
    return int(table[table[:, 0] == id_of(device), 1].sum())


class CountedSum:
    """The sum of the private values of all counted devices, in float64, on the server."""

    def __init__(self, model: Net) -> None:
        self.counted = Counted()
        self._model = model
        self._sums = {n: torch.zeros_like(w, dtype=torch.float64) for n, w in sent_parameters(model).items()}

    def mean(self) -> dict[str, Tensor]:
        """Return the mean of the private values, in the type of the weights."""
        m = max(1, len(self.counted))
        return {name: (self._sums[name] / m).to(w.dtype) for name, w in sent_parameters(self._model).items()}

    def told(self, kind: str = "") -> Payload:
        """Return the table, and the mean as arrays of this kind; before the first answer there is nothing to tell."""
        if not self.counted:
            return {}
        return {**(named(kind, self.mean()) if kind else {}), **self.counted.table()}

    def add(self, replies: Sequence[Reply], number: int, change: Callable[[Reply, str], Tensor]) -> None:
        """Add the changes by the answers of a round; `change` computes the change of one parameter in float64."""
        ordered = sorted(replies, key=lambda reply: reply.device)
        for name, total in self._sums.items():
            for reply in ordered:
                report_progress()
                total += change(reply, name)
        self.counted.add((reply.device for reply in ordered), number)

    def state(self) -> dict[str, Tensor]:
        return {**{f"sums.{n}": total.clone() for n, total in self._sums.items()}, **self.counted.table()}

    def restore(self, state: Payload) -> None:
        self.counted.restore(state)
        self._sums = {name: state[f"sums.{name}"].clone() for name in self._sums}


def named(kind: str, value: Value) -> dict[str, Tensor]:
    """Return a value under the names that its arrays have in messages."""
    return {f"{kind}.{name}": tensor for name, tensor in value.items()}


def mean_in(payload: Payload, kind: str, model: Net) -> Value:
    """Return the mean of the private values in a broadcast, which is 0 before the first answer."""
    weights = sent_parameters(model)
    if "counted" not in payload:
        return {name: torch.zeros_like(w) for name, w in weights.items()}
    demand_arrays(payload, like(named(kind, weights)))
    return {name: payload[f"{kind}.{name}"].detach() for name in weights}


class KeptValues:
    """The private values of one device after its last answers, by round; round 0 stands for the value 0.

    The coordinator may go back to the start of the previous round, and then use other answers of that round. So in
    round t it is certain whether an answer counts only if the round of the answer is before t - 1.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self._values: dict[int, Value] = {}
        self._bases: dict[int, int] = {}  # Round -> round of the value from which its value was computed.

    def continue_from(self, payload: Payload, model: Net) -> tuple[int, Value]:
        """Return the value after the newest used answer, and the round of this answer.

        If this value is lost, because the device's folder is new or an older copy, the newest value before it is
        returned.
        """
        used = last_used(payload, self.device)
        base = max((number for number in self._values if number <= used), default=0)
        found, parameters = self._values.get(base), sent_parameters(model)
        if found is None:
            return 0, {name: torch.zeros_like(w) for name, w in parameters.items()}
        return base, {name: found[name].to(w.device) for name, w in parameters.items()}

    def keep(self, number: int, base: int, value: Value) -> None:
        """Keep the value after the answer of round `number`, and drop the values that no table can name any more.

        The value was computed from the value of round `base`.
        """
        before = self._bases.get(base, 0) if base == number - 1 else base
        wanted = {before, base, number - 1}
        self._values = {n: kept for n, kept in self._values.items() if n in wanted} | {number: value}
        self._bases = {n: self._bases.get(n, 0) for n in self._values} | {number: base}

    def state(self) -> dict[str, Tensor]:
        rows = torch.tensor(sorted(self._bases.items()), dtype=torch.int64).reshape(-1, 2)
        values = {f"{n}.{name}": v.clone() for n, value in self._values.items() for name, v in value.items()}
        return {"rounds": rows, **values}

    def restore(self, state: Payload) -> None:
        self._bases = dict(state["rounds"].tolist())
        found: dict[int, dict[str, Tensor]] = {number: {} for number in self._bases}
        for key in state:
            number, _, name = key.partition(".")
            if name:
                found[int(number)][name] = state[key].clone()
        self._values = dict(found)


def changed(value: Value, changes: Value) -> Value:
    """Return the value after the changes, which are added in float64 and rounded to the type of the value."""
    return {name: (old.double() + changes[name]).to(old.dtype) for name, old in value.items()}
