"""Check that a method with the setting `least_samples` sends nothing about a class with fewer samples."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from torch import Tensor

from protofleet.lab.contract.halves import Halves
from protofleet.lab.contract.worlds import Subject, require
from protofleet.methods.contract.base import Payload

SETTING: Final = "least_samples"
SOME: Final = 20  # One of the three devices has fewer samples of each class, and the others have more.
MORE_THAN_ANY: Final = 1000


def small_classes_are_not_sent(subject: Subject) -> None:
    """Require that answers have no row of a class with too few samples, and that a round without rows goes on."""
    if not hasattr(subject.plan().settings(), SETTING):
        return
    for least in (SOME, MORE_THAN_ANY):
        limited = replace(subject, hyper={**subject.hyper, SETTING: least})
        halves = Halves(limited.plan())
        for number in (1, 2):
            for _, sent in halves.round(number):
                for device, payload in sent.items():
                    require_large(device, payload, halves.data[device].y, least)


def require_large(device: str, payload: Payload, y: Tensor, least: int) -> None:
    """Require that each label and each count of an answer is of a class with at least `least` of the labels y."""
    counts = y.bincount()
    small = sorted(label for label in {*payload.get("labels", y[:0]).tolist()} if counts[label] < least)
    require(
        not small,
        f"{device} sends classes {small}, of which it has fewer samples than method.{SETTING} = {least}; send what "
        "sent_means or sent_rows of methods/parts/small_classes.py returns",
    )
    few = [count for count in payload.get("counts", y[:0]).tolist() if count < least]
    require(not few, f"{device} sends rows of {few} samples, but method.{SETTING} is {least}")
