"""The arrays in which a device sends a low-rank factor of its second moments in 8 bits, and what they add up to.

All arrays are means over the samples of the device. W is the width of a sample, C the number of classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Final, TypeAlias

import torch
from torch import Tensor

from protofleet.methods.contract.base import Payload, Reply
from protofleet.methods.contract.liveness import report_progress
from protofleet.methods.contract.wants import TensorSpec
from protofleet.methods.maths.left_out import Moments, errors_of_penalties
from protofleet.methods.maths.rounded_rows import room, rounded_rows, rows_of
from protofleet.methods.parts.feature_means import ROOM

MomentsOf: TypeAlias = Callable[[Reply], Moments]

GRID: Final = tuple(10 ** (power / 2) for power in range(-2, 9))  # 0.1 to 10,000
ALONE: Final = 1.0  # The penalty if no device can be left out.
GROUPS: Final = 20  # Largest number of groups of devices that are left out, one group after another.


def moment_wants(rank: int, classes: int, width: int) -> Mapping[str, TensorSpec]:
    """Return the specifications of `rounded_moments`; the samples are not lowered, because `moments` does this."""
    return {
        "factor": TensorSpec((rank, width), "uint8", low=1, high=255),
        "targets": TensorSpec((classes, width), "uint8", low=1, high=255),
        "scales.factor": TensorSpec((rank,), low=0),
        "scales.targets": TensorSpec((classes,), low=0),
        "tail": TensorSpec((1,), low=0),
        "samples": TensorSpec((1,), "int32", low=0, of_examples=True, capped=False),
    }


def rounded_moments(
    factor: Tensor, tail: Tensor, targets: Tensor, samples: int, generator: torch.Generator
) -> dict[str, Tensor]:
    """Return the arrays for a factor [rank, W], its tail [1] and the products with the targets [C, W]."""
    (rows, scales), (products, others) = (rounded_rows(value, generator) for value in (factor, targets))
    return {
        "factor": rows, "targets": products, "scales.factor": scales, "scales.targets": others,
        "tail": tail.float(), "samples": torch.tensor([samples], dtype=torch.int32),
    }  # fmt: skip


def arrays_of(payload: Payload) -> tuple[Tensor, Tensor, float]:
    """Return the factor, the products with the targets and the tail of an answer, in float64."""
    rows, targets = (rows_of(payload[name], payload[f"scales.{name}"]) for name in ("factor", "targets"))
    return rows, targets, float(payload["tail"])


def problem_with_moments(payload: Payload, most: float) -> str:
    """Return why no samples of a norm of at most `most` can have these arrays, with value and limit; or ""."""
    rows, targets, tail = arrays_of(payload)
    width = rows.shape[1]
    limit = most * room(width) * (1 + ROOM)
    if (norm := math.sqrt(float(rows.square().sum()) + width * tail)) > limit:
        return f"factor and tail have a norm of {norm:g}, above {limit:g}"
    norm = float(targets.norm(dim=1).max())
    return f"targets has a row with a norm of {norm:g}, above {limit:g}" if norm > limit else ""


def moments(reply: Reply) -> Moments:
    """Return the sums over the samples of a device, of which no more count than the examples of the Reply."""
    report_progress()
    rows, targets, tail = arrays_of(reply.payload)
    identity = torch.eye(rows.shape[1], dtype=rows.dtype, device=rows.device)
    samples = float(min(int(reply.payload["samples"]), reply.examples))
    return Moments(samples * (rows.T @ rows + tail * identity), samples * targets.T, samples)


def total(replies: Sequence[Reply], of: MomentsOf = moments) -> Moments:
    """Return the sums over the samples of these devices, in their order; there is at least one device."""
    return reduce(Moments.__add__, map(of, replies))


def chosen_penalty(replies: Sequence[Reply], whole: Moments, of: MomentsOf = moments) -> float:
    """Return the penalty of GRID with the smallest squared error on devices that are left out of the head."""
    groups = [replies[place::GROUPS] for place in range(min(GROUPS, len(replies)))]
    penalties, errors = [lam * whole.unit for lam in GRID], [0.0] * len(GRID)
    for own in (total(group, of) for group in groups):
        report_progress()
        if 0 < own.samples < whole.samples:
            found = errors_of_penalties(whole - own, own, penalties)
            errors = [error + more for error, more in zip(errors, found, strict=True)]
    return GRID[errors.index(min(errors))] if any(errors) else ALONE
