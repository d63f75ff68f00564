"""What runs save for pictures: features, prototypes and anchors of a round. Read, measured and laid out here.

devices/<device>/pictures/round-0003.npz holds `features` [n, D] and `labels` [n] of training samples as the
device's model saw them after round 3, its `domain`, and what crossed in that round: `received.anchors` [C, L],
`received.prototypes` [G, D] with `received.labels` and `received.shares` [G], `sent.prototypes` [J, D] with
`sent.labels` and `sent.counts` [J]. Any of them may be missing. The last evaluation counts as a round.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Margins = dict[int, float]  # class -> distance to the nearest prototype of another class
NAME = re.compile(r"round-(\d+)\.npz")
ANCHOR, GLOBAL, LOCAL = "anchor", "global prototype", "local prototype"
KINDS = {"anchors": ANCHOR, "prototypes": GLOBAL}  # what a server sends
MOST_POINTS = 1500  # in one picture
STEPS = 500  # of t-SNE: twice as many look the same
FEWEST = 8  # points that t-SNE is worth its time for


@dataclass(frozen=True)
class Marks:
    """Rows that stand for a class: anchors, or prototypes with their shares or counts."""

    kind: str
    points: Array  # [G, D]
    labels: Array  # [G]
    sizes: Array  # [G], in any unit; all 1 where nothing was said
    device: str = ""  # that made them; the server, where it is empty


@dataclass(frozen=True)
class Scene:
    """One device after one round."""

    device: str
    round: int
    domain: str
    features: Array  # [n, D]
    labels: Array  # [n]
    received: Mapping[str, Array] = field(default_factory=dict)
    sent: Mapping[str, Array] = field(default_factory=dict)


def saved_rounds(folder: Path) -> dict[int, list[Path]]:
    """The picture files of a run, by round, devices in order."""
    found: dict[int, list[Path]] = {}
    for path in sorted(folder.glob("devices/*/pictures/round-*.npz")):
        if match := NAME.fullmatch(path.name):
            found.setdefault(int(match[1]), []).append(path)
    return dict(sorted(found.items()))


def evenly(rounds: Sequence[int], most: int) -> list[int]:
    """At most so many of them, the first and the last included."""
    if len(rounds) <= most:
        return list(rounds)
    return [rounds[i] for i in np.linspace(0, len(rounds) - 1, most).round().astype(int)]


def read_scenes(paths: Iterable[Path]) -> list[Scene]:
    """A file that a crash left torn is as good as none.

    Where anchors are unit vectors, everything is taken at unit length: such methods compare directions.
    """
    scenes = [scene for path in paths if (scene := read_scene(path)) is not None]
    anchors = [scene.received["anchors"] for scene in scenes if "anchors" in scene.received]
    if not anchors or not all(map(on_sphere, anchors)):
        return scenes
    return [
        replace(s, features=unit(s.features), received=unit_rows(s.received), sent=unit_rows(s.sent))
        for s in scenes
    ]


def on_sphere(rows: Array) -> bool:
    return rows.ndim == 2 and bool(np.allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-3))


def unit(rows: Array) -> Array:
    norms = np.linalg.norm(rows, axis=-1, keepdims=True)
    made: Array = rows / np.where(norms > 0, norms, 1.0)
    return made


def unit_rows(arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {
        name: unit(array) if name in KINDS and array.ndim == 2 else array for name, array in arrays.items()
    }


def read_scene(path: Path) -> Scene | None:
    match = NAME.fullmatch(path.name)
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        return None
    device = path.parent.parent.name
    domain = str(arrays.get("domain", device))
    number = int(match[1]) if match else 0
    features, labels = finite(arrays.get("features"), arrays.get("labels"))
    received, sent = part(arrays, "received."), part(arrays, "sent.")
    return Scene(device, number, domain, features, labels, received, sent)


def part(arrays: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    return {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}


def finite(points: Array | None, labels: Array | None) -> tuple[Array, Array]:
    """Rows that can be drawn; none where points and labels do not fit each other."""
    if points is None or labels is None or points.ndim != 2 or labels.shape != points.shape[:1]:
        return np.zeros((0, 0)), np.zeros(0, np.int64)
    good = np.isfinite(points).all(axis=1)
    return points[good].astype(np.float64), labels[good].astype(np.int64)


def marks_of(arrays: Mapping[str, Array], name: str, kind: str, sizes: str) -> Marks | None:
    """Anchors, and whatever comes without labels, are one row a class, in their order."""
    rows = arrays.get(name)
    if rows is None or rows.ndim != 2:
        return None
    plain = np.arange(len(rows))
    labels = arrays.get("labels", plain) if name == "prototypes" else plain
    size = arrays.get(sizes, plain[:0])
    if size.shape != plain.shape or not np.isfinite(size).all():
        size = np.ones(len(rows))
    points, kept = finite(rows, labels)
    if not len(points):
        return None
    return Marks(kind, points, kept, size[np.isfinite(rows).all(axis=1)].astype(np.float64))


def received_marks(scenes: Iterable[Scene]) -> list[Marks]:
    """What the server sent: the same to all, so the first device that has it speaks for them."""
    found: dict[str, Marks] = {}
    for scene in scenes:
        for name, kind in KINDS.items():
            if marks := marks_of(scene.received, name, kind, "shares"):
                found.setdefault(kind, marks)
    return list(found.values())


def sent_marks(scene: Scene) -> Marks | None:
    marks = marks_of(scene.sent, "prototypes", LOCAL, "counts")
    return replace(marks, device=scene.device) if marks else None


def class_margins(points: Array, labels: Array) -> Margins:
    """Least distance from a class's rows to a row of another class; none where there is no other."""
    found: Margins = {}
    for point, label in zip(points, labels.tolist(), strict=True):
        others = points[labels != label]
        if len(others):
            gap = float(np.linalg.norm(others - point, axis=1).min())
            found[label] = min(gap, found.get(label, gap))
    return found


def class_means(features: Array, labels: Array) -> tuple[Array, Array]:
    """Of unit vectors the means are mean directions."""
    classes = np.unique(labels)
    if not len(classes):
        return np.zeros((0, 0)), classes
    means = np.stack([features[labels == c].mean(axis=0) for c in classes])
    return (unit(means) if on_sphere(features) else means), classes


def local_margins(scenes: Iterable[Scene]) -> Margins:
    """The baseline of FedLSA's fig. 1: for each class the largest margin that any device's class means have."""
    found: Margins = {}
    for scene in scenes:
        for label, gap in class_margins(*class_means(scene.features, scene.labels)).items():
            found[label] = max(gap, found.get(label, 0.0))
    return found


def margins_of_run(folder: Path) -> tuple[int, Margins, dict[str, Margins]]:
    """Of the last saved round in which something was received: (round, local ones, shared ones by kind)."""
    for number, paths in reversed(saved_rounds(folder).items()):
        scenes = read_scenes(paths)
        shared = {m.kind: class_margins(m.points, m.labels) for m in received_marks(scenes)}
        if shared := {kind: gaps for kind, gaps in shared.items() if gaps}:
            return number, local_margins(scenes), shared
    return 0, {}, {}


@dataclass(frozen=True)
class Layout:
    """Features of several devices, and marks, as places [n, 2] of one projection."""

    scenes: Sequence[Scene]
    clouds: Sequence[Array]  # places of the features of each scene
    marks: Sequence[Marks]
    spots: Sequence[Array]  # places of the rows of each of the marks


def lay_out(scenes: Sequence[Scene], marks: Sequence[Marks], most: int = MOST_POINTS) -> Layout | None:
    """Of rows of one size, the commonest; at most so many features, of every device in its proportion."""
    sizes = [scene.features.shape[1] for scene in scenes if len(scene.features)]
    if not sizes:
        return None
    size = max(sorted(set(sizes)), key=sizes.count)
    fitting = [s for s in scenes if len(s.features) and s.features.shape[1] == size]
    known = [m for m in marks if len(m.points) and m.points.shape[1] == size]
    share = min(1.0, most / sum(len(s.features) for s in fitting))
    kept = [thinned(scene, max(1, int(share * len(scene.features)))) for scene in fitting]
    groups = [s.features for s in kept] + [m.points for m in known]
    places = np.split(project(np.concatenate(groups)), np.cumsum([len(g) for g in groups])[:-1])
    return Layout(kept, places[: len(kept)], known, places[len(kept) :])


def thinned(scene: Scene, most: int) -> Scene:
    """At most so many samples, the same ones always, each class in its proportion."""
    order = np.argsort(scene.labels, kind="stable")
    if len(order) > most:
        order = order[np.linspace(0, len(order) - 1, most).round().astype(int)]
    return replace(scene, features=scene.features[order], labels=scene.labels[order])


def of_classes(scene: Scene, classes: Sequence[int]) -> Scene:
    kept = np.isin(scene.labels, classes)
    return replace(scene, features=scene.features[kept], labels=scene.labels[kept])


def marks_of_classes(marks: Marks, classes: Sequence[int]) -> Marks:
    kept = np.isin(marks.labels, classes)
    return replace(marks, points=marks.points[kept], labels=marks.labels[kept], sizes=marks.sizes[kept])


def project(points: Array) -> Array:
    """[n, D] -> [n, 2] by t-SNE, the same for the same points; by principal axes where they are too few."""
    points = points - points[:1]  # not from the mean: equal rows must be exactly zero, or t-SNE crashes
    largest = np.abs(points).max(initial=0.0)
    if not largest:
        return np.zeros((len(points), 2))
    points = np.pad(points / largest, ((0, 0), (0, max(0, 2 - points.shape[1]))))
    if len(points) < FEWEST:
        u, s, _ = np.linalg.svd(points - points.mean(axis=0), full_matrices=False)
        axes: Array = np.pad(u * s, ((0, 0), (0, 2)))[:, :2]
        return axes
    from sklearn.manifold import TSNE  # takes a second
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    perplexity = min(30.0, (len(points) - 1) / 3)
    method = TSNE(2, perplexity=perplexity, init="pca", random_state=0, max_iter=STEPS)
    with threadpool_limits(1):  # threads that wait for each other are slower than one where cores are busy
        made = method.fit_transform(points.astype(np.float32))
    places: Array = np.asarray(made, np.float64)
    return places
