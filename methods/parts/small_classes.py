"""Classes of which a device has too few samples: the device sends nothing about them.

A mean of one sample is that sample's feature, and a mean of a few samples is near to their features.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import torch
from torch import Tensor

from protofleet.methods.contract.base import Reply
from protofleet.methods.nets.base import Net
from protofleet.methods.parts.local import LocalHyper
from protofleet.methods.parts.prototypes import class_rows, held_rows
from protofleet.protocol.settings.bounds import LARGEST_COUNT, Within

LeastSamples: TypeAlias = Annotated[int, Within(1, LARGEST_COUNT)]

log = logging.getLogger("protofleet.device")


@dataclass(frozen=True)
class LeastSamplesHyper(LocalHyper):
    """The settings of methods that train on their devices and send rows of classes; the default is the papers'."""

    least_samples: LeastSamples = 1
    """Least number of samples of a class on a device; a device sends nothing about a class with fewer samples,
    because a mean of one sample is that sample's feature; the default 1 is the paper's method.
    """


@dataclass(frozen=True)
class ClassMeansHyper(LeastSamplesHyper):
    """The settings of methods that train on their devices and send class means, with a default that protects."""

    least_samples: LeastSamples = 5
    """Least number of samples of a class on a device; a device sends no mean of a class with fewer samples, because a
    mean of one sample is that sample's feature; the paper's numbers need 1.
    """


def sent_classes(counts: Tensor, least: int, number: int) -> Tensor:
    """Return a mask of the classes of which a device sends something, and log the classes that it leaves out.

    `counts` [C] are the numbers of samples on the device, and `number` is the number of the round.
    """
    few = ((counts > 0) & (counts < least)).nonzero().flatten().tolist()
    if few:
        log.warning(
            "round %d: the classes %s have fewer than method.least_samples = %d samples here, so nothing about them "
            "is sent", number, ", ".join(map(str, few)), least,
        )  # fmt: skip
    return counts >= least


def sent_rows(table: Tensor, counts: Tensor, least: int, number: int) -> dict[str, Tensor]:
    """Return the rows of the table [C, D] that a device sends, with their labels; see `sent_classes`."""
    return class_rows(table, sent_classes(counts, least, number))


def sent_means(means: Tensor, counts: Tensor, least: int, number: int) -> dict[str, Tensor]:
    """Return the class means [C, D] that a device sends, with labels and counts; see `sent_classes`."""
    return held_rows(means, torch.where(sent_classes(counts, least, number), counts, 0))


def devices_by_class(labels: Sequence[Tensor], classes: int) -> Tensor:
    """Return how many devices have sent each class [C], from the labels of each device."""
    found = torch.zeros(classes, dtype=torch.int64)
    for own in labels:
        found += own.cpu().bincount(minlength=classes).clamp(max=1)
    return found


def class_figures(devices: Sequence[int]) -> dict[str, float]:
    """Return the number of devices that have sent each class, for `monitor`."""
    return {f"devices.{label}": float(number) for label, number in enumerate(devices)}


class DevicesByClass:
    """The part of a server half that counts how many devices of a round have sent each class."""

    model: Net
    devices_of_class: Mapping[str, float] = {}

    def count_devices(self, replies: Sequence[Reply]) -> None:
        own = [self.labels_of(reply) for reply in replies if reply.devices_of_class is None]
        found = devices_by_class(own, self.model.classes).tolist()
        for reply in replies:
            for label, number in (reply.devices_of_class or {}).items():
                found[label] += number
        self.devices_of_class = class_figures(found)

    def labels_of(self, reply: Reply) -> Tensor:
        """Return the labels of the classes that a device has sent."""
        return reply.payload["labels"]

    def monitor(self) -> Mapping[str, float]:
        return self.devices_of_class


class CountsIfLimited(DevicesByClass):
    """The same part of a method whose default is the paper's: it counts only if a limit above 1 is set.

    So the records of runs without a limit have no other figures than before.
    """

    hyper: Any

    def count_devices(self, replies: Sequence[Reply]) -> None:
        if self.hyper.least_samples > 1:
            super().count_devices(replies)
