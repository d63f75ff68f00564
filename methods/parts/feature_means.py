"""Means that a device sends of its features and of their products, and what the means of all devices add up to.

The server makes a sum from each mean and its number of samples. Sums are not sent, because they grow with the number
of samples, and the coordinator refuses arrays with a large norm.

If a device has many more samples than the others, the coordinator lowers the number of its examples. Then each of
its sums is multiplied by the same factor, so that its sums still belong to the same samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from protofleet.methods.contract.base import Payload, Reply
from protofleet.methods.contract.received import demand_arrays
from protofleet.methods.contract.wants import TensorSpec
from protofleet.methods.maths.means import ClassMeans
from protofleet.methods.nets.base import Net
from protofleet.methods.parts.prototypes import held_row_wants, held_rows
from protofleet.methods.parts.rules import Linear
from protofleet.methods.parts.statistics import ROW_ROOM, StatisticsHyper

# Rounding to float32 makes an eigenvalue of zero slightly negative: by less than this share of the mean eigenvalue.
NEGATIVE = 1e-4
ROOM = 1e-3  # Share by which rounding may make a mean of squares larger.


def dtype_of(model: Net) -> torch.dtype:
    return next(model.parameters()).dtype


def spec(model: Net, *shape: int | str) -> TensorSpec:
    """Return the specification of an array in the type of the network; "held" is the number of held classes."""
    return TensorSpec(shape, str(dtype_of(model)).removeprefix("torch."), most=model.classes)


def held_mean_wants(
    model: Net, hyper: StatisticsHyper, width: int, name: str = "means"
) -> dict[str, TensorSpec]:
    """Return the specifications of class means of this width, and of their labels and counts.

    The coordinator does not lower the counts, because it would lower each of them on its own. See `samples`.
    """
    found = held_row_wants(model, width=width)
    most = ROW_ROOM * math.sqrt(width) if hyper.normalised else 0.0
    return {
        name: replace(found["prototypes"], row_norm=most),
        "labels": found["labels"],
        "counts": replace(found["counts"], capped=False),
    }


def held_means(model: Net, means: Tensor, counts: Tensor, name: str = "means") -> dict[str, Tensor]:
    """Return the arrays of `held_mean_wants` for class means [C, width] and counts [C].

    They are not called prototypes, because codecs round prototypes, and the checks find rounded means.
    """
    found = held_rows(means.to(dtype_of(model)), counts)
    return {name: found["prototypes"], "labels": found["labels"], "counts": found["counts"]}


def samples(reply: Reply) -> Tensor:
    """Return the number of samples of each held class as it counts in sums, in float64."""
    counts = reply.payload["counts"].double()
    return counts * min(1.0, reply.examples / max(1.0, float(counts.sum())))


def holds_a_class(replies: Sequence[Reply]) -> bool:
    return any(len(reply.payload["labels"]) for reply in replies)


def total_means(replies: Sequence[Reply], classes: int, name: str = "means") -> ClassMeans:
    """Return the means [C, D] over the samples of all devices, and the numbers of samples [C], in float64."""
    rows = torch.cat([reply.payload[name] for reply in replies]).double()
    labels = torch.cat([reply.payload["labels"] for reply in replies])
    each = torch.cat([samples(reply) for reply in replies])
    counts = each.new_zeros(classes).index_add_(0, labels, each)
    sums = rows.new_zeros(classes, rows.shape[1]).index_add_(0, labels, each.unsqueeze(1) * rows)
    return sums / torch.where(counts > 0, counts, 1.0).unsqueeze(1), counts


def known_or_zero(table: Tensor, known: Tensor) -> Tensor:
    """Return a table [C, ...] with zeros for the classes that are not known."""
    return torch.where(known.reshape(-1, *[1] * (table.ndim - 1)), table, 0.0)


def class_squares(rows: Tensor, weights: Tensor) -> Tensor:
    """Return the sum of w mu mu' over rows mu [R, D] with weights w [R], in float64."""
    wide = rows.double()
    return wide.T @ (weights.unsqueeze(1) * wide)


def own_squares(payload: Payload, name: str = "means") -> Tensor:
    """Return the mean over the samples of one device of mu_c mu_c', with mu_c the mean of the sample's class."""
    counts = payload["counts"].double()
    return class_squares(payload[name], counts / counts.sum().clamp(min=1))


def problem_with_squares(
    name: str, sent: Tensor, within: Tensor, whole: Tensor, most: float = math.inf
) -> str:
    """Return why no samples can have these matrices, with value and limit; "" if there may be such samples.

    `whole` is the mean of x x', and `within` is the same about the means of the classes. One of them is `sent`, so
    its numbers are rounded. `most` is the largest trace of `whole`. The check of `within` also finds class means that
    do not fit `whole`.
    """
    if (least := float(sent.diagonal().min())) < 0:
        return f"{name} has {least:g} on its diagonal, below 0"
    if (trace := float(whole.trace())) > (limit := most * (1 + ROOM)):
        return f"{name} has a trace of {trace:g}, above {limit:g}"
    limit = -NEGATIVE * float(sent.diagonal().mean())
    if (smallest := float(torch.linalg.eigvalsh(within)[0])) < limit:
        return f"{name} about the class means has an eigenvalue of {smallest:g}, below {limit:g}"
    return ""


def linear_rule(payload: Payload, model: Net, *, bias: bool, normalised: bool) -> Linear:
    """Return the rule of a head [C, D or D + 1] that is sent as a whole; its last number is the bias.

    A class that no device has held has a row of zeros, and is not known.
    """
    size = model.embedding_size
    demand_arrays(payload, {"head": spec(model, model.classes, size + bias)})
    head = payload["head"].detach()
    biases = head[:, size] if bias else head.new_zeros(len(head))
    return Linear(head[:, :size], biases, (head != 0).any(dim=1), normalised=normalised)
