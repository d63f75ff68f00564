"""One reply in place of the replies of a phase, whose arrays are combined by the rules of [policy.robust].

The arrays are combined when they are read, so a coordinator never has the updates of a cohort in memory. The numbers
of samples that devices claim are capped at three times their median, under every rule.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import torch
from torch import Tensor

from protofleet.coordinator.robust.points import ArrayPoints, RowPoints
from protofleet.coordinator.robust.rules import FEWEST, Combine, fitted
from protofleet.coordinator.round.robust import Robust
from protofleet.coordinator.round.weights import weight_cap
from protofleet.methods.contract.averages import CLASS_ROWS, Averaged
from protofleet.methods.contract.base import Payload, Reply
from protofleet.methods.contract.wants import TensorSpec, sliced
from protofleet.methods.parts.averaging import flat_slice
from protofleet.methods.parts.state import snapshot
from protofleet.protocol.wire.kinds import kind_in

WEIGHT_CAP: Final = 3.0  # Largest weight of a device under a rule, as a multiple of the median weight.
NAME: Final = "combined"  # Name of the device in the reply that stands for all replies.


@dataclass(frozen=True)
class AveragedPhase:
    """The task of an averaged phase, as far as the rules need it."""

    averaged: Averaged
    wants: Mapping[str, TensorSpec]
    broadcast: Payload  # The arrays of the task. `cap` limits the differences to these arrays.
    # Names of the arrays with running statistics. Their numbers have other units than weights, so they are vectors of
    # their own.
    statistics: frozenset[str] = frozenset()
    # Device -> its number of samples of each class, as it stated them when it joined; only for a table of rows.
    counts: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def is_combined(self, robust: Robust) -> bool:
        """Return whether a rule other than the mean applies to an array of this phase."""
        arrays = bool(self.averaged.arrays) and robust.weights != "mean"
        return arrays or (self.averaged.rows is not None and robust.prototypes != "mean")


def combined(replies: Sequence[Reply], asked: AveragedPhase, robust: Robust) -> Sequence[Reply]:
    """Return one reply with the combined arrays; return fewer than two replies as they are."""
    if len(replies) < 2 or not asked.is_combined(robust):
        return replies
    ordered = sorted(replies, key=lambda reply: reply.device)
    examples = sum(reply.examples for reply in ordered)
    holders = devices_of_class(ordered, asked) if asked.averaged.rows else None
    return [Reply(NAME, examples, CombinedPayload(ordered, asked, robust), devices_of_class=holders)]


def devices_of_class(replies: Sequence[Reply], asked: AveragedPhase) -> Mapping[int, int]:
    """Return the number of devices that have sent each class."""
    return Counter(label for reply in replies for label in labels_of(reply, asked))


def labels_of(reply: Reply, asked: AveragedPhase) -> set[int]:
    if not asked.averaged.table:
        return set(reply.payload["labels"].tolist())
    return {label for label, n in enumerate(asked.counts[reply.device]) if n >= asked.averaged.least}


class CombinedPayload(Mapping[str, Tensor]):
    """The combined arrays of all replies, computed when they are read."""

    def __init__(self, replies: Sequence[Reply], asked: AveragedPhase, robust: Robust) -> None:
        self._replies, self._asked, self._robust = replies, asked, robust
        single, rows = asked.averaged.single, CLASS_ROWS if asked.averaged.rows else ()
        sent = [name for name in asked.wants if name in replies[0].payload and name not in single]
        self._names = tuple(dict.fromkeys((*sent, *rows)))
        self._arrays = [name for name in self._names if kind_in(name) in asked.averaged.arrays]
        # The rules are fitted now: later, the server half may write into the arrays of the broadcast.
        self._fits = dict(self._fit_groups())

    def __getitem__(self, name: str) -> Tensor:
        if name in self._arrays:
            return self._bounded(name, self._combined(name))
        if name in self._names:
            return self._bounded(name, self._rows[name])
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _fit_groups(self) -> Iterator[tuple[str, tuple[ArrayPoints, Combine]]]:
        """Fit the rule for weights to the weights, and separately to the running statistics."""
        floats = [name for name in self._arrays if self._asked.wants[name].is_float]
        groups = (
            [name for name in floats if name not in self._asked.statistics],
            [name for name in floats if name in self._asked.statistics],
        )
        payloads = [reply.payload for reply in self._replies]
        needs_broadcast = self._robust.weights == "cap" or len(payloads) < FEWEST
        shares = shares_of([weight_of(reply, self._asked.averaged.by) for reply in self._replies])
        for group in filter(None, groups):
            first = sliced(payloads[0])
            sizes = {name: math.prod(first.dtype_and_shape(name)[1]) for name in group}
            sent = {name: self._asked.broadcast[name] for name in group if name in self._asked.broadcast}
            broadcast = snapshot(sent) if needs_broadcast else {}
            points = ArrayPoints(payloads, sizes, broadcast)
            combine = fitted(self._robust.weights, points, shares, self._robust.liars)
            yield from ((name, (points, combine)) for name in group)

    def _combined(self, name: str) -> Tensor:
        first = self._replies[0].payload[name]
        if name not in self._fits:  # Whole numbers (num_batches_tracked) are those of the first device.
            return first
        points, combine = self._fits[name]
        found = torch.empty(first.numel(), dtype=torch.float64)
        for start, stop in points.ranges(name):
            found[start:stop] = combine(*points.slice(name, start, stop))
        return found.reshape(first.shape).to(first.dtype)

    def _bounded(self, name: str, value: Tensor) -> Tensor:
        """Return the array within the bounds of the task: a running variance must not become negative."""
        spec = self._asked.wants.get(name)  # Labels and counts of a table are not requested.
        if spec is None or (spec.low is None and spec.high is None):
            return value
        return value.clamp(spec.low, spec.high)

    @cached_property
    def _rows(self) -> Mapping[str, Tensor]:
        by, rule = self._asked.averaged.rows, self._robust.prototypes
        assert by is not None, "an array that is not averaged is refused before the task is sent"
        tables = [ClassRows.of(reply, self._asked) for reply in self._replies]
        held = sorted(set().union(*(table.places for table in tables)))
        sent = _rows_in(self._asked.broadcast, self._asked.averaged.table)
        rows, counts = [], []
        for label in held:
            holders = [(t, r) for t, r in zip(tables, self._replies, strict=True) if label in t.places]
            weights = [table.weight(label, by) for table, _ in holders]
            x = torch.stack([table.row(label) for table, _ in holders])
            late = [weight * reply.weight for weight, (_, reply) in zip(weights, holders, strict=True)]
            zero = x.new_zeros(x.shape[1])
            broadcast = sent.get(label, zero).to(x)
            points = RowPoints(x, broadcast if broadcast.shape == zero.shape else zero)
            combine = fitted(rule, points, shares_of(late), self._robust.liars)
            rows.append(combine(points.rows, points.broadcast))
            counts.append(sum(1 if by == "devices" else table.count(label) for table, _ in holders))
        first = self._replies[0].payload["prototypes"]
        return {
            "prototypes": torch.stack(rows).to(first.dtype) if rows else first[:0],
            "labels": torch.tensor(held, dtype=torch.int64),
            "counts": torch.tensor(counts, dtype=torch.int64),
        }


@dataclass(frozen=True)
class ClassRows:
    """The rows of classes in a device's update; rows of the same class are pooled."""

    payload: Payload
    width: int
    places: Mapping[
        int, Sequence[tuple[int, int]]
    ]  # Class -> (number of the row, count of samples) of its rows.

    @classmethod
    def of(cls, reply: Reply, asked: AveragedPhase) -> ClassRows:
        width = sliced(reply.payload).dtype_and_shape("prototypes")[1][1]
        if asked.averaged.table:
            stated = enumerate(asked.counts[reply.device])
            return cls(reply.payload, width, {label: [(label, n)] for label, n in stated if n})
        labels, counts = (reply.payload[name].tolist() for name in ("labels", "counts"))
        places: dict[int, list[tuple[int, int]]] = {}
        for number, (label, count) in enumerate(zip(labels, counts, strict=True)):
            places.setdefault(label, []).append((number, count))
        return cls(reply.payload, width, places)

    def weight(self, label: int, by: str) -> float:
        """Return the weight of the device in the mean of a class."""
        if by == "devices":
            return 1
        return self.count(label) / (self.examples if by == "shares" else 1)

    @cached_property
    def examples(self) -> int:
        return sum(map(self.count, self.places))

    def count(self, label: int) -> int:
        return sum(count for _, count in self.places[label])

    def row(self, label: int) -> Tensor:
        """Return the row of a class in float64; only this row is read from the disk."""
        total, width = self.count(label), self.width
        rows = (
            flat_slice(self.payload, "prototypes", number * width, (number + 1) * width).double() * count
            for number, count in self.places[label]
        )
        return torch.stack(list(rows)).sum(dim=0) / total


def weight_of(reply: Reply, by: str) -> float:
    return reply.weight * (reply.examples if by == "examples" else 1)


def shares_of(weights: Sequence[float]) -> Tensor:
    """Return the shares of devices, whose weights are capped; the shares are equal if no weight is above 0."""
    cap = weight_cap(weights, WEIGHT_CAP)
    found = torch.tensor([min(one, cap) for one in weights], dtype=torch.float64)
    return found / found.sum() if bool(found.any()) else torch.full_like(found, 1 / len(found))


def _rows_in(broadcast: Payload, table: bool) -> Mapping[int, Tensor]:
    """Return the row of each class in a broadcast, by class."""
    if not {"prototypes", *(() if table else ("labels",))} <= broadcast.keys():
        return {}
    rows = broadcast["prototypes"].detach().clone()
    labels = range(len(rows)) if table else broadcast["labels"].tolist()
    return dict(zip(labels, rows, strict=True))
