"""Check that a user's metric returns a number for any samples.

The metric must return equal numbers for equal samples, and must not change the tensors that it gets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch import Tensor

from protofleet.lab.contract.worlds import CLASSES, require
from protofleet.methods.contract.own_metrics import Metric


def drawn(samples: int, classes: int = CLASSES) -> tuple[Tensor, Tensor]:
    """Draw random scores in the form of a network's output, and labels of the first `classes` classes."""
    dice = torch.Generator().manual_seed(samples)
    return torch.randn(samples, CLASSES, generator=dice), torch.arange(samples) % classes


def number_of(metric: Metric, scores: Tensor, labels: Tensor, what: str) -> float:
    found = float(metric(scores, labels))
    require(math.isfinite(found), f"of {what} it is {found}, it must be a finite number")
    return found


def gives_a_number(metric: Metric) -> None:
    number_of(metric, *drawn(30), "30 samples")


def one_sample_is_enough(metric: Metric) -> None:
    number_of(metric, *drawn(1), "one sample")


def one_class_is_enough(metric: Metric) -> None:
    number_of(metric, *drawn(12, classes=1), "samples of one class")


def repeats(metric: Metric) -> None:
    one, again = (number_of(metric, *drawn(30), "30 samples") for _ in range(2))
    require(one == again, f"of the same scores it is {one}, and then {again}")


def changes_nothing(metric: Metric) -> None:
    scores, labels = drawn(30)
    before = scores.clone(), labels.clone()
    metric(scores, labels)
    same = torch.equal(before[0], scores) and torch.equal(before[1], labels)
    require(
        same, "it changes the scores or the labels that it is given, which others are measured by; copy them"
    )


CHECKS: Final[Mapping[str, Callable[[Metric], None]]] = {
    "gives a number": gives_a_number,
    "one sample is enough": one_sample_is_enough,
    "one class is enough": one_class_is_enough,
    "is the same again": repeats,
    "changes nothing": changes_nothing,
}
