"""Compute two-dimensional positions by t-SNE for the features, anchors and prototypes of several devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from protofleet.lab.report.sections.snapshots import Array, ClassPoints, Snapshot

MAX_POINTS = 1500  # Maximum number of points in one picture.
TSNE_STEPS = 500  # Number of steps of t-SNE. With twice as many steps, the picture looks the same.
# Smallest number of points for t-SNE. A few points are projected to their principal components, which is faster and
# shows as much.
MIN_TSNE_POINTS = 8


def evenly_spaced(rounds: Sequence[int], limit: int) -> list[int]:
    """Return at most `limit` rounds at equal distances, including the first and the last round."""
    if len(rounds) <= limit:
        return list(rounds)
    return [rounds[i] for i in np.linspace(0, len(rounds) - 1, limit).round().astype(int)]


@dataclass(frozen=True)
class ProjectedPoints:
    """Class points and the features of several devices, as positions [n, 2] in the same projection."""

    snapshots: Sequence[Snapshot]
    sample_positions: Sequence[Array]  # For each snapshot, the positions of its features.
    class_points: Sequence[ClassPoints]
    class_positions: Sequence[Array]  # For each entry of `class_points`, the positions of its rows.


def project_snapshots(
    snapshots: Sequence[Snapshot], class_points: Sequence[ClassPoints], limit: int = MAX_POINTS
) -> ProjectedPoints | None:
    """Project at most `limit` features. The same share of the features is taken from each device.

    Only features of the most common feature size are used.
    """
    sizes = [snapshot.features.shape[1] for snapshot in snapshots if len(snapshot.features)]
    if not sizes:
        return None
    size = max(sorted(set(sizes)), key=sizes.count)
    matching = [s for s in snapshots if len(s.features) and s.features.shape[1] == size]
    known = [m for m in class_points if len(m.points) and m.points.shape[1] == size]
    share = min(1.0, limit / sum(len(s.features) for s in matching))
    kept = [subsample(snapshot, max(1, int(share * len(snapshot.features)))) for snapshot in matching]
    groups = [s.features for s in kept] + [m.points for m in known]
    positions = np.split(project(np.concatenate(groups)), np.cumsum([len(g) for g in groups])[:-1])
    return ProjectedPoints(kept, positions[: len(kept)], known, positions[len(kept) :])


def subsample(snapshot: Snapshot, limit: int) -> Snapshot:
    """Return at most `limit` samples. The choice is deterministic and keeps the shares of the classes."""
    order = np.argsort(snapshot.labels, kind="stable")
    if len(order) > limit:
        order = order[np.linspace(0, len(order) - 1, limit).round().astype(int)]
    return replace(snapshot, features=snapshot.features[order], labels=snapshot.labels[order])


def samples_of_classes(snapshot: Snapshot, classes: Sequence[int]) -> Snapshot:
    kept = np.isin(snapshot.labels, classes)
    return replace(snapshot, features=snapshot.features[kept], labels=snapshot.labels[kept])


def points_of_classes(points: ClassPoints, classes: Sequence[int]) -> ClassPoints:
    kept = np.isin(points.labels, classes)
    return replace(points, points=points.points[kept], labels=points.labels[kept], sizes=points.sizes[kept])


def project(points: Array) -> Array:
    """Project points [n, D] to [n, 2] by t-SNE, with the same result at each call.

    If there are too few points for t-SNE, principal components are used.
    """
    # If all rows are equal, they must become exactly zero, or t-SNE crashes. Subtracting the mean would leave
    # rounding errors, so the first row is subtracted.
    points = points - points[:1]
    largest = np.abs(points).max(initial=0.0)
    if not largest:
        return np.zeros((len(points), 2))
    points = np.pad(points / largest, ((0, 0), (0, max(0, 2 - points.shape[1]))))
    if len(points) < MIN_TSNE_POINTS:
        u, s, _ = np.linalg.svd(points - points.mean(axis=0), full_matrices=False)
        axes: Array = np.pad(u * s, ((0, 0), (0, 2)))[:, :2]
        return axes
    from sklearn.manifold import TSNE  # This import is slow, so it is made only when it is needed.
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    perplexity = min(30.0, (len(points) - 1) / 3)
    method = TSNE(2, perplexity=perplexity, init="pca", random_state=0, max_iter=TSNE_STEPS)
    with threadpool_limits(1):  # If the cores are busy, several threads are slower than one.
        projected = method.fit_transform(points.astype(np.float32))
    positions: Array = np.asarray(projected, np.float64)
    return positions
