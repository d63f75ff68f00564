"""Rows of classes, which are means over the samples of a device: membership, images and small classes.

A sample that is in a mean is nearer to the mean than other samples of its class. The fewer samples the mean has, the
nearer it is. The mean of one sample is the sample's feature.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protofleet.lab.leakage.attacks.images import Inversion, Pairs, class_images, image_scores
from protofleet.lab.leakage.attacks.tables import class_rows_in
from protofleet.lab.leakage.finding import Attacker, Finding, ImageScores, MembershipScores
from protofleet.lab.leakage.maths.intervals import Figure
from protofleet.lab.leakage.maths.membership import Scores
from protofleet.lab.leakage.maths.recovery import total_variation
from protofleet.lab.leakage.scene import LEAST_FITTED, AnsweredTask, Scene, map_to_pixels

Numbers = NDArray[np.float64]
OF_MEANS = "of the mean image of each class; the baseline is the class mean of other images"
FEW = 5  # A mean of fewer samples is nearly a sample.


def task_with_rows(scene: Scene) -> tuple[AnsweredTask, str] | None:
    """Return the first exchange with class rows, and the name of the array."""
    classes = scene.observed.plan.classes
    found = ((task, class_rows_in(task, classes)) for task in scene.tasks)
    return next(((task, name) for task, name in found if name), None)


def membership(scene: Scene) -> list[MembershipScores]:
    """Return scores by the distance of a sample's feature to the rows of its class."""
    given, extractor, sides = task_with_rows(scene), scene.extractor, scene.never_sent
    members, others = scene.member_features, scene.other_features
    if given is None or extractor is None or sides is None or scene.truth is None:
        return []
    task, name = given
    if members is None or others is None or not _fits(task.answer[name], members):
        return []
    scores = Scores(
        scene.device, *_scores(task, name, members, scene.truth.samples.y),
        *_scores(task, name, others, sides.others.y),
    )  # fmt: skip
    return [MembershipScores("membership by the class row", name, extractor.attacker, scores)]


def _fits(rows: Tensor, features: Tensor) -> bool:
    """Return whether rows are means of features; a targets array may have a constant feature at its end."""
    return rows.shape[1] in (features.shape[1], features.shape[1] + 1)


def _scores(task: AnsweredTask, name: str, features: Tensor, y: Tensor) -> tuple[Numbers, NDArray[np.int64]]:
    """Return the scores of the samples whose classes have rows, and the classes of these samples."""
    rows = task.answer[name].double()
    labels = labels_of_rows(task, len(rows))
    if _is_unit(rows):
        features = torch.nn.functional.normalize(features, dim=1)
    gaps = torch.cdist(features, rows[:, : features.shape[1]])
    gaps[labels.unsqueeze(0) != y.unsqueeze(1)] = torch.inf
    nearest = gaps.min(dim=1).values
    held = nearest.isfinite()
    return -nearest[held].numpy(), y[held].numpy()


def labels_of_rows(task: AnsweredTask, rows: int) -> Tensor:
    """Return the class of each row; rows without labels are those of the classes 0, 1, ..."""
    return task.answer["labels"] if "labels" in task.answer else torch.arange(rows)


def _is_unit(rows: Tensor) -> bool:
    """Return whether all rows have the length 1, so that only their directions count."""
    return bool((rows.norm(dim=1) - 1).abs().max() < 1e-3)


@dataclass(frozen=True)
class HeldRows:
    """The sent rows of a device's classes, the true mean image of each, and features to learn from."""

    name: str  # Name of the array.
    attacker: Attacker
    rows: Tensor  # [N, D]
    classes: NDArray[np.int64]  # [N]
    true: Numbers  # [N, pixels]
    means: Numbers  # [C, pixels]: the mean images of the classes of auxiliary samples.
    features: Tensor  # [M, D]: of auxiliary samples, in the form of the rows.

    def inversion(self, found: Numbers) -> Inversion:
        """Return the inversion; the control takes the image of the row before, mostly of another class."""
        control = Pairs(np.roll(found, 1, axis=0), self.true, self.classes)
        return Inversion(
            Pairs(found, self.true, self.classes), self.means[self.classes], control, "rows of other classes"
        )


def held_rows(scene: Scene) -> HeldRows | None:
    """Return the rows of the classes that the device has; None if they cannot be turned into images."""
    given, extractor, sides = task_with_rows(scene), scene.extractor, scene.never_sent
    features = scene.auxiliary_features
    if given is None or extractor is None or sides is None or scene.truth is None or features is None:
        return None
    task, name = given
    rows, classes = task.answer[name].double(), scene.observed.plan.classes
    labels = labels_of_rows(task, len(rows))
    held = torch.bincount(scene.truth.samples.y, minlength=classes)[labels] > 0
    if int(held.sum()) < 2 or not _fits(rows, features) or len(features) < LEAST_FITTED:
        return None
    if _is_unit(rows):
        features = torch.nn.functional.normalize(features, dim=1)
    places = labels[held].numpy()
    return HeldRows(
        name, max("A2", extractor.attacker), rows[held, : features.shape[1]], places,
        class_images(scene.truth.samples, classes)[places], class_images(sides.auxiliary, classes), features,
    )  # fmt: skip


def inversion(scene: Scene) -> list[ImageScores]:
    """Return how close a linear map from rows to pixels comes to the mean image of each class of the device."""
    held = held_rows(scene)
    if held is None or scene.never_sent is None:
        return []
    known = scene.pixels_of_features if held.features is scene.auxiliary_features else None
    to_pixels = known or map_to_pixels(held.features, scene.never_sent.auxiliary)
    return image_scores(
        scene, "ridge inversion of the class row", held.name, held.attacker,
        held.inversion(to_pixels(held.rows.numpy())), gates=True, note=OF_MEANS,
    )  # fmt: skip


def small_classes(scene: Scene) -> list[Finding]:
    """Return the smallest number of samples in a class row, and the label distribution that the counts show."""
    task = scene.task_with("counts", "labels")
    if task is None or not len(task.answer["counts"]):
        return []
    counts = task.answer["counts"]
    least = int(counts.min())
    few = int((counts < FEW).sum())
    smallest = Finding(
        "smallest class", "counts", "samples", "A0", scene.device, Figure(float(least)), gates=True,
        note=f"{few} of {len(counts)} rows are means of fewer than {FEW} samples",
    )  # fmt: skip
    return [smallest, *_stated(scene, task)]


def _stated(scene: Scene, task: AnsweredTask) -> list[Finding]:
    classes = scene.observed.plan.classes
    found = np.zeros(classes)
    np.add.at(found, task.answer["labels"].numpy(), task.answer["counts"].double().numpy())
    return [label_distribution(scene, found, "counts", "A0", "label distribution, as stated")]


def label_distribution(scene: Scene, found: Numbers, kind: str, attacker: Attacker, attack: str) -> Finding:
    """Return how far a found label distribution is from the true one, and how far an equal distribution is."""
    if scene.truth is None:
        most = ", ".join(f"{share:.0%}" for share in found / found.sum())
        note = f"no ground truth: not measured; the attacker finds {most}"
        return Finding(attack, kind, "total variation", attacker, scene.device, note=note, unmeasured=note)
    classes = scene.observed.plan.classes
    true = torch.bincount(scene.truth.samples.y, minlength=classes).double().numpy()
    equal = total_variation(np.ones(classes), true)
    return Finding(
        attack, kind, "total variation", attacker, scene.device, Figure(total_variation(found, true)), equal,
        gates=True, note="0 means that the distribution is known; the baseline is an equal distribution",
    )  # fmt: skip
