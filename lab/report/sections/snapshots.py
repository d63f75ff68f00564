"""Read the features, prototypes and anchors that devices save for pictures.

devices/<device>/pictures/round-0003.npz holds the `features` [n, D] that the device's model computed from training
samples after round 3, the `labels` [n] of these samples, and the `domain` of the device.

The file also holds the arrays that the device has received and sent in that round: `received.anchors` [C, L],
`received.prototypes` [G, D] with `received.labels` and `received.shares` [G], `sent.prototypes` [J, D] with
`sent.labels` and `sent.counts` [J]. Here n, C, G and J are numbers of rows, and D and L are lengths of
vectors. Each of these arrays may be missing. The last evaluation counts as a round.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
FILE_NAME = re.compile(r"round-(\d+)\.npz")
ANCHOR, GLOBAL, LOCAL = "anchor", "global prototype", "local prototype"
# The kinds of points that a server sends, by the names of their arrays.
KINDS = {"anchors": ANCHOR, "prototypes": GLOBAL}


@dataclass(frozen=True)
class ClassPoints:
    """Points that represent classes: anchors, or prototypes with their shares or counts."""

    kind: str
    points: Array  # Array of the shape [G, D]: G points with D numbers each.
    labels: Array  # The class of each point, with the shape [G].
    sizes: Array  # The share or the count of each point, [G]. All are 1 if the file has no sizes.
    device: str = ""  # The device that computed the points; "" for the server.


@dataclass(frozen=True)
class Snapshot:
    """The saved arrays of one device after one round."""

    device: str
    round: int
    domain: str
    features: Array  # Array of the shape [n, D]: n samples with D numbers each.
    labels: Array  # The class of each sample, with the shape [n].
    received: Mapping[str, Array] = field(default_factory=dict)
    sent: Mapping[str, Array] = field(default_factory=dict)


def saved_rounds(folder: Path) -> dict[int, list[Path]]:
    """Return the picture files of a run by round. The files of a round are sorted by device."""
    found: dict[int, list[Path]] = {}
    for path in sorted(folder.glob("devices/*/pictures/round-*.npz")):
        if match := FILE_NAME.fullmatch(path.name):
            found.setdefault(int(match[1]), []).append(path)
    return dict(sorted(found.items()))


def read_snapshots(paths: Iterable[Path]) -> list[Snapshot]:
    """Read the snapshots. A file that cannot be read, for example after a crash, is skipped.

    If the anchors are unit vectors, the method compares only directions. Then all vectors are scaled to length 1.
    """
    snapshots = [snapshot for path in paths if (snapshot := read_snapshot(path)) is not None]
    anchors = [snapshot.received["anchors"] for snapshot in snapshots if "anchors" in snapshot.received]
    if not anchors or not all(map(are_unit_vectors, anchors)):
        return snapshots
    return [
        replace(
            s,
            features=unit_length(s.features),
            received=unit_length_rows(s.received),
            sent=unit_length_rows(s.sent),
        )
        for s in snapshots
    ]


def are_unit_vectors(rows: Array) -> bool:
    return rows.ndim == 2 and bool(np.allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-3))


def unit_length(rows: Array) -> Array:
    norms = np.linalg.norm(rows, axis=-1, keepdims=True)
    scaled: Array = rows / np.where(norms > 0, norms, 1.0)
    return scaled


def unit_length_rows(arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {
        name: unit_length(array) if name in KINDS and array.ndim == 2 else array
        for name, array in arrays.items()
    }


def read_snapshot(path: Path) -> Snapshot | None:
    match = FILE_NAME.fullmatch(path.name)
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        return None
    device = path.parent.parent.name
    domain = str(arrays.get("domain", device))
    number = int(match[1]) if match else 0
    features, labels = finite_rows(arrays.get("features"), arrays.get("labels"))
    received, sent = without_prefix(arrays, "received."), without_prefix(arrays, "sent.")
    return Snapshot(device, number, domain, features, labels, received, sent)


def without_prefix(arrays: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    return {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}


def finite_rows(points: Array | None, labels: Array | None) -> tuple[Array, Array]:
    """Return the rows without infinite numbers and NaN.

    If points and labels do not have the same length, return no rows.
    """
    if points is None or labels is None or points.ndim != 2 or labels.shape != points.shape[:1]:
        return np.zeros((0, 0)), np.zeros(0, np.int64)
    good = np.isfinite(points).all(axis=1)
    return points[good].astype(np.float64), labels[good].astype(np.int64)


def read_class_points(arrays: Mapping[str, Array], name: str, kind: str, sizes: str) -> ClassPoints | None:
    """Read class points.

    An array without labels (anchors, for example) has one row for each class, in the order of the classes.
    """
    rows = arrays.get(name)
    if rows is None or rows.ndim != 2:
        return None
    in_order = np.arange(len(rows))
    labels = arrays.get("labels", in_order) if name == "prototypes" else in_order
    size = arrays.get(sizes, in_order[:0])
    if size.shape != in_order.shape or not np.isfinite(size).all():
        size = np.ones(len(rows))
    points, kept = finite_rows(rows, labels)
    if not len(points):
        return None
    return ClassPoints(kind, points, kept, size[np.isfinite(rows).all(axis=1)].astype(np.float64))


def received_points(snapshots: Iterable[Snapshot]) -> list[ClassPoints]:
    """Return the class points that the server sent.

    All devices receive the same points, so the points are read from the first snapshot that has them.
    """
    found: dict[str, ClassPoints] = {}
    for snapshot in snapshots:
        for name, kind in KINDS.items():
            if class_points := read_class_points(snapshot.received, name, kind, "shares"):
                found.setdefault(kind, class_points)
    return list(found.values())


def sent_points(snapshot: Snapshot) -> ClassPoints | None:
    class_points = read_class_points(snapshot.sent, "prototypes", LOCAL, "counts")
    return replace(class_points, device=snapshot.device) if class_points else None
