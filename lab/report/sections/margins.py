"""Compute margins between classes, as in fig. 1 of FedLSA's paper.

A margin is a distance to the nearest point of another class. There are margins of the points that the server
sent, and margins of the class means that a device computed.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from protofleet.lab.report.sections.snapshots import (
    Array,
    Snapshot,
    are_unit_vectors,
    read_snapshots,
    received_points,
    saved_rounds,
    unit_length,
)  # fmt: skip

Margins = dict[int, float]  # For each class, the distance to the nearest prototype of another class.
BASELINE = "largest local"  # The pictures show the margins of the devices' own class means under this name.


def class_margins(points: Array, labels: Array) -> Margins:
    """Return for each class the smallest distance between a row of the class and a row of another class.

    If there is only one class, the result is empty.
    """
    found: Margins = {}
    for point, label in zip(points, labels.tolist(), strict=True):
        others = points[labels != label]
        if len(others):
            gap = float(np.linalg.norm(others - point, axis=1).min())
            found[label] = min(gap, found.get(label, gap))
    return found


def class_means(features: Array, labels: Array) -> tuple[Array, Array]:
    """Return the mean of each class, and the classes. The mean of unit vectors is scaled to a unit vector."""
    classes = np.unique(labels)
    if not len(classes):
        return np.zeros((0, 0)), classes
    means = np.stack([features[labels == c].mean(axis=0) for c in classes])
    return (unit_length(means) if are_unit_vectors(features) else means), classes


def local_margins(snapshots: Iterable[Snapshot]) -> Margins:
    """Return the baseline of fig. 1 of FedLSA's paper, by class.

    Each device has margins between its own class means. The baseline of a class is the largest of these margins over
    the devices.
    """
    found: Margins = {}
    for snapshot in snapshots:
        for label, gap in class_margins(*class_means(snapshot.features, snapshot.labels)).items():
            found[label] = max(gap, found.get(label, 0.0))
    return found


def margins_of_run(folder: Path) -> tuple[int, Margins, dict[str, Margins]]:
    """Return a round, its local margins, and its shared margins by kind (anchors or prototypes).

    The round is the last saved round in which devices received class points.
    """
    for number, paths in reversed(saved_rounds(folder).items()):
        snapshots = read_snapshots(paths)
        shared = {m.kind: class_margins(m.points, m.labels) for m in received_points(snapshots)}
        if shared := {kind: gaps for kind, gaps in shared.items() if gaps}:
            return number, local_margins(snapshots), shared
    return 0, {}, {}


def ratio(gaps: Margins, local: Margins) -> float | None:
    """Return the mean of `gaps` divided by the mean of `local`; None if this ratio has no value.

    Only classes that are in both mappings are used. Unlike a distance, this ratio can be compared between
    methods.
    """
    both = gaps.keys() & local.keys()
    base = sum(local[c] for c in both)
    return sum(gaps[c] for c in both) / base if base > 0 else None


def mean(gaps: Margins) -> float:
    return sum(gaps.values()) / len(gaps) if gaps else 0.0
