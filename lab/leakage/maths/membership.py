"""How well scores tell the samples of a device from samples that were never sent.

A larger score says that a sample was more likely among the device's samples. AUC is the probability that a member has
a larger score than a sample that is not a member; ties count half. The rules against false results:

  clusters   Samples of the same device and class are alike, so the bootstrap draws (device, class) clusters. A
             bootstrap of samples has put an interval of [.507, .575] around a control whose truth is .5.
  scale      The scores of each device are standardised on its non-members before devices are pooled.
  threshold  The threshold of a false positive rate is set on one half of the non-members and read on the other.
  least      A rate of 1 % needs 1,000 non-members, because fewer give less than ten expected hits.
  control    Non-members are compared with other non-members in the same way. The truth of this control is .5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from protofleet.lab.leakage.maths.intervals import LEVEL, STRICT, Figure, clopper_pearson, student

Numbers: TypeAlias = NDArray[np.float64]
Labels: TypeAlias = NDArray[np.int64]

RATE: Final = 0.01  # False positive rate at which the true positive rate is read.
LEAST_OTHERS: Final = 1_000
DRAWS: Final = 600  # Bootstrap draws.
SMALLEST: Final = 1e-12


@dataclass(frozen=True)
class Scores:
    """The scores of the members of one device, and of samples that are not members, with their classes."""

    device: str
    members: Numbers
    member_classes: Labels
    others: Numbers
    other_classes: Labels

    def standardised(self) -> Scores:
        """Return the scores minus the mean of the non-members, divided by their standard deviation."""
        mean, deviation = float(self.others.mean()), max(float(self.others.std()), SMALLEST)
        members, others = ((part - mean) / deviation for part in (self.members, self.others))
        return Scores(self.device, members, self.member_classes, others, self.other_classes)

    def control(self) -> Scores:
        """Return every second non-member of each class as if it were a member, against the other non-members."""
        first = every_second(self.other_classes)
        return Scores(
            self.device,
            self.others[first], self.other_classes[first], self.others[~first], self.other_classes[~first],
        )  # fmt: skip


@dataclass(frozen=True)
class Membership:
    """The figures of one device, or of several devices together."""

    auc: Figure
    control: Figure  # The same measure with non-members in place of members, at the level STRICT.
    true_positives: Figure  # Rate of members found at RATE; NaN if there are too few non-members.
    false_positives: Figure  # Rate of the other half of the non-members at the same threshold.

    @property
    def sound(self) -> bool:
        """Return whether the control is at chance. If it is not, the figure says nothing."""
        return self.control.contains(0.5)


def membership(devices: Sequence[Scores], seed: int = 0) -> Membership:
    """Return the figures of these devices together, after standardisation within each device."""
    alike = [one.standardised() for one in devices]
    controls = [one.control().standardised() for one in devices]
    auc, control = clustered_auc(alike, seed), clustered_auc(controls, seed, STRICT)
    found, wrong = rates(alike)
    return Membership(auc, control, found, wrong)


def clustered_auc(devices: Sequence[Scores], seed: int = 0, level: float = LEVEL) -> Figure:
    """Return the AUC of all samples with an interval from a bootstrap over (device, class) clusters."""
    wins, members, others = pairs_of_clusters(devices)
    drawn = np.random.default_rng(seed).multinomial(
        len(members), np.full(len(members), 1 / len(members)), size=DRAWS
    )
    drawn = drawn.astype(np.float64)
    above, total = ((drawn @ wins) * drawn).sum(1), (drawn @ members) * (drawn @ others)
    found = above[total > 0] / total[total > 0]
    value = float(wins.sum() / (members.sum() * others.sum()))
    half = student(len(members), level) * float(found.std())
    return Figure(value, value - half, value + half)


def pairs_of_clusters(devices: Sequence[Scores]) -> tuple[Numbers, Numbers, Numbers]:
    """Return in how many pairs a member of cluster a beats a non-member of cluster b, [a, b], and all sizes."""
    members, others = list[Numbers](), list[Numbers]()
    for one in devices:
        for label in np.union1d(one.member_classes, one.other_classes):
            members.append(one.members[one.member_classes == label])
            others.append(np.sort(one.others[one.other_classes == label]))
    sizes, other_sizes = (np.array([float(len(part)) for part in side]) for side in (members, others))
    every, clusters = np.concatenate(members), np.repeat(np.arange(len(members)), sizes.astype(np.int64))
    columns = [np.bincount(clusters, _wins_of_each(every, part), len(members)) for part in others]
    return np.stack(columns, axis=1), sizes, other_sizes


def _wins_of_each(members: Numbers, others: Numbers) -> Numbers:
    """Return how many of the sorted others each member beats; a tie is half a win."""
    found: Numbers = (
        np.searchsorted(others, members, "left") + np.searchsorted(others, members, "right")
    ) / 2
    return found


def auc(members: Numbers, others: Numbers) -> float:
    """Return the AUC without an interval."""
    return float(_wins_of_each(members, np.sort(others)).sum()) / max(1, len(members) * len(others))


def rates(devices: Sequence[Scores], rate: float = RATE) -> tuple[Figure, Figure]:
    """Return the rates of true and of false positives at a threshold for this false positive rate."""
    members = np.concatenate([one.members for one in devices])
    halves = [(one.others, every_second(one.other_classes)) for one in devices]
    setting = np.concatenate([values[first] for values, first in halves])
    reading = np.concatenate([values[~first] for values, first in halves])
    if len(setting) + len(reading) < LEAST_OTHERS:
        return Figure(math.nan), Figure(math.nan)
    threshold = float(np.quantile(setting, 1 - rate, method="higher"))
    return (
        clopper_pearson(int((members > threshold).sum()), len(members)),
        clopper_pearson(int((reading > threshold).sum()), len(reading)),
    )


def every_second(classes: Labels) -> NDArray[np.bool_]:
    """Return a mask that holds every second sample of each class."""
    mask = np.zeros(len(classes), dtype=np.bool_)
    for label in np.unique(classes):
        mask[np.flatnonzero(classes == label)[::2]] = True
    return mask
