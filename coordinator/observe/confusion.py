"""Confusion matrices by domain, from the counts of devices at the last evaluation.

A device that contradicts itself is ignored. The sum of its matrix must equal its number of test samples,
and the share of correct predictions must equal its accuracy. No one can check more than that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

import torch
from torch import Tensor

from protofleet.coordinator.observe.measured import SAMPLES
from protofleet.methods.contract.confusion import CONFUSION

Matrix: TypeAlias = list[list[int]]  # class -> predicted class -> count

# Most numbers in all matrices of a record; if there are more, all domains are added up.
MOST_NUMBERS: Final = 200_000
ALL: Final = "all domains"
ROUNDING: Final = 1e-6  # largest error of an accuracy that was sent as float32


def confusion_by_domain(
    counted: Iterable[tuple[str, Mapping[str, Tensor], Mapping[str, float]]],
    domains: Mapping[str, str],
    view: str,
    most: float = math.inf,
) -> dict[str, Matrix]:
    """Sum up the matrices by domain, in a fixed order of the domains.

    `counted` holds the name, the arrays and the metrics of each device; `view` is the model whose accuracy
    the metrics hold. The matrix of a device with more than `most` samples is scaled down to `most`.
    """
    sums: dict[str, Tensor] = {}
    for device, arrays, metrics in counted:
        if CONFUSION in arrays and agrees(matrix := arrays[CONFUSION].to(torch.int64), metrics, view):
            domain = domains.get(device, device)
            if (total := int(matrix.sum())) > most:
                matrix = (matrix.double() * (most / total)).round().to(torch.int64)
            sums[domain] = sums[domain] + matrix if domain in sums else matrix
    if sum(matrix.numel() for matrix in sums.values()) > MOST_NUMBERS:
        sums = {ALL: torch.stack(list(sums.values())).sum(0)}
    return {domain: matrix.tolist() for domain, matrix in sorted(sums.items())}


def agrees(matrix: Tensor, metrics: Mapping[str, float], view: str) -> bool:
    total, right = int(matrix.sum()), int(matrix.trace())
    stated = metrics.get(f"accuracy.test.{view}", -1.0)
    return total > 0 and total == metrics.get(SAMPLES) and abs(right / total - stated) < ROUNDING
