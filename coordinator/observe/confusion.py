"""Confusion matrices by domain, from the counts that devices send with the last evaluation.

The counts of a device are ignored if they contradict the metrics of the same device. The sum of the
matrix must be the device's number of test samples, and the share of correct predictions must be the device's
accuracy. The coordinator can check nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

import torch
from torch import Tensor

from protofleet.coordinator.observe.measured import SAMPLES
from protofleet.methods.contract.confusion import CONFUSION

Matrix: TypeAlias = list[list[int]]  # matrix[class][predicted class] is a number of samples.

# Limit on the numbers in all matrices of a record. If there are more numbers, the record has only one matrix, the
# sum over all domains.
MOST_NUMBERS: Final = 200_000
ALL: Final = "all domains"
# Largest difference between the accuracy in a matrix and the accuracy that the same device has sent as float32.
ROUNDING: Final = 1e-6


def confusion_by_domain(
    counted: Iterable[tuple[str, Mapping[str, Tensor], Mapping[str, float]]],
    domains: Mapping[str, str],
    view: str,
    most: float = math.inf,
) -> dict[str, Matrix]:
    """Sum up the matrices by domain, in a fixed order of the domains.

    `counted` holds the name, the arrays and the metrics of each device. A matrix is left out if it does not agree
    with the device's accuracy in `view`. A matrix with more than `most` samples is scaled down to `most`.
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
