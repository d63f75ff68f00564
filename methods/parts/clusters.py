"""Several prototypes of each class, made by FINCH from the devices' rows, together with an averaged model.

FPL and later methods use these prototypes. A table is rows [J, D], their labels [J] and, if a method weighs
the rows, the number of samples of each row [J]. The method chooses the names of the arrays in messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import torch
from torch import Tensor

from protofleet.methods.contract.base import Ask, Member, Payload, Round, Samples, ServerHalf
from protofleet.methods.contract.received import demand_arrays
from protofleet.methods.contract.wants import TensorSpec
from protofleet.methods.maths.finch import finch_star, finch_star_in_parts
from protofleet.methods.nets.base import Net
from protofleet.methods.parts.averaging import weighted_mean
from protofleet.methods.parts.local import embed
from protofleet.methods.parts.prototypes import LARGEST_NUMBER, has_rows, row_specs
from protofleet.methods.parts.prototypes import table_of as class_table_of
from protofleet.methods.parts.small_classes import CountsIfLimited, sent_classes
from protofleet.methods.parts.state import snapshot
from protofleet.methods.parts.weights import load_weights, weight_wants, weights_of

Table: TypeAlias = tuple[Tensor, ...]

# The largest number of rows that one device may send. A device with up to 65,000 samples does not have more rows.
MOST_ROWS: Final = 32_768


class ClusteringServer(CountsIfLimited, ServerHalf):
    """A server half that averages the models and clusters the rows of each class.

    If no device of a round holds a class, the rows of this class do not change.
    """

    comes: tuple[str, ...] = ("prototypes", "labels")
    goes: tuple[str, ...] = ("prototypes", "labels")
    table: Table | None = None

    def round(self) -> Round:
        weights = weight_wants(self.model)
        replies = yield Ask("train", self.payload(), {**weights, **self.wants()})
        self.count_devices(replies)
        load_weights(self.model, weighted_mean(replies, weights))
        # FINCH takes the first of several equally near rows, so the rows must not be in the order of arrival.
        ordered = sorted(replies, key=lambda reply: reply.device)
        sent = joined(self.table_in(reply.payload) for reply in ordered)
        self.table = joined(self.of_next_round(label, sent) for label in range(self.model.classes))

    def wants(self) -> Mapping[str, TensorSpec]:
        """Return the specifications of the arrays.

        A device may send at most as many rows as it has samples. This limit is needed because devices do not
        send counts.
        """
        return cluster_wants(self.model, self.cohort, row_per_example=True)

    def table_in(self, answer: Payload) -> Table:
        return table_of(answer, self.comes)

    def of_next_round(self, label: int, sent: Table) -> Table:
        own = of_class(label, sent)
        return self.clusters(own) if len(own[0]) or self.table is None else of_class(label, self.table)

    def clusters(self, own: Table) -> Table:
        """Return the clusters of one class, in which every row counts once."""
        rows, labels = own
        means, _ = finch_star_in_parts(rows, torch.ones_like(labels))
        return means, labels[: len(means)]

    def payload(self) -> Payload:
        return {**weights_of(self.model), **self.known()}

    def known(self) -> Payload:
        return {} if self.table is None else dict(zip(self.goes, self.table, strict=True))

    def state(self) -> Payload:
        return {**snapshot(weights_of(self.model)), **self.known()}

    def restore(self, state: Payload) -> None:
        load_weights(self.model, state)
        self.table = table_of(state, self.goes) if "prototypes" in state else None

    def monitor(self) -> Mapping[str, float]:
        if self.table is None:
            return super().monitor()
        found = self.table[1].bincount(minlength=self.model.classes).tolist()
        by_class = {f"prototypes.{label}": float(n) for label, n in enumerate(found)}
        return {**by_class, "prototypes.all": float(sum(found)), **super().monitor()}


@dataclass(frozen=True)
class Clusters:
    """The rows of all classes that a device knows."""

    rows: Tensor  # [G, D]
    labels: Tensor  # [G]
    means: Tensor  # [C, D]: the mean of each class's rows
    known: Tensor  # [C]: True for each class that has rows


def clusters_in(payload: Payload, model: Net) -> Clusters | None:
    if not has_rows(payload):
        return None
    demand_arrays(payload, row_specs(model))
    rows, labels = table_of(payload, ("prototypes", "labels"))
    return Clusters(rows, labels, *class_table_of({"prototypes": rows, "labels": labels}, model))


def local_clusters(
    model: Net, data: Samples, least: int = 1, number: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows, labels and counts of FINCH's clusters of each class that a device sends in round `number`.

    The clusters are made from all training samples of the classes with at least `least` samples, in evaluation mode.
    """
    z, y = embed(model, data.x), data.y
    sent = sent_classes(y.bincount(minlength=model.classes), least, number)
    found = []
    for label in range(model.classes):
        held = z[(y == label) & sent[label]]
        means, counts = large_clusters(*finch_star(held, y.new_ones(len(held))), least)
        found.append((means, y.new_full((len(means),), label), counts))
    rows, labels, counts = joined(found)
    return rows, labels, counts


def large_clusters(means: Tensor, counts: Tensor, least: int) -> tuple[Tensor, Tensor]:
    """Return the clusters [J, D] with at least `least` samples; the smaller ones become one cluster of a class.

    If even this cluster has fewer samples, it is left out.
    """
    small = counts < least
    if not small.any():
        return means, counts
    total = counts[small].sum(dim=0, keepdim=True)
    sums = (means[small].double() * counts[small].unsqueeze(1)).sum(dim=0, keepdim=True)
    pooled = sums / total.unsqueeze(1)
    rows, held = torch.cat([means[~small], pooled.to(means.dtype)]), torch.cat([counts[~small], total])
    return rows[held >= least], held[held >= least]


def cluster_wants(model: Net, cohort: Sequence[Member], *, row_per_example: bool) -> dict[str, TensorSpec]:
    """Return the specifications of clustered rows.

    If a class has two samples or more, each of its clusters has two samples or more. So there are at most half
    as many rows as samples, and in addition one row for each class with one sample.
    """
    classes = model.classes
    rows = min((most_examples(cohort) + classes) // 2, MOST_ROWS)
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    return {
        "prototypes": TensorSpec(
            ("J", model.embedding_size), dtype, low=-LARGEST_NUMBER, high=LARGEST_NUMBER, most=rows,
            row_per_example=row_per_example,
        ),
        "labels": TensorSpec(("J",), "int64", low=0, high=classes - 1, most=rows),
    }  # fmt: skip


def most_examples(cohort: Sequence[Member]) -> int:
    return max([1, *(member.examples for member in cohort)])


def table_of(payload: Payload, names: Iterable[str]) -> Table:
    return tuple(payload[name].detach() for name in names)


def of_class(label: int, table: Table) -> Table:
    held = table[1] == label
    return tuple(column[held] for column in table)


def joined(tables: Iterable[Table]) -> Table:
    return tuple(torch.cat(columns) for columns in zip(*tables, strict=True))
