"""Choose the colours and shapes of classes, devices, anchors and prototypes. All pictures use the same choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from protofleet.lab.report.drawing.palette import COLOURS, GREY
from protofleet.lab.report.drawing.scatter import DOT_SHAPES, Dots, LegendEntry, Mark, Position
from protofleet.lab.report.sections.projection import ProjectedPoints
from protofleet.lab.report.sections.snapshots import ANCHOR, LOCAL, Snapshot

CROWDED = 15  # If a panel has more marks than this number, the marks are smaller.
MAX_SIZE_TAGS = 12  # If there are more marks than this number, the marks have no labels with their sizes.
NO_FILL, WHITE = "none", "var(--paper)"
SHAPES = {ANCHOR: "diamond", LOCAL: "circle"}  # Marks of other kinds are stars.
MIN_MARK_SIZE, MAX_MARK_SIZE = 4.0, 13.0  # Smallest and largest value for half of a mark's width, in pixels.


@dataclass(frozen=True)
class PlotStyle:
    classes: Sequence[int]  # The classes that are drawn. Class i of this list has colour i of COLOURS.
    class_count: int  # Number of all classes, including those that are not drawn.
    groups: Sequence[str]  # Names of the devices, or of the domains if there are too many devices.
    group_kind: str  # The kind of the groups: "device" or "domain".

    @classmethod
    def of(cls, snapshots: Sequence[Snapshot]) -> PlotStyle:
        classes = sorted({int(c) for snapshot in snapshots for c in np.unique(snapshot.labels)})
        drawn = classes[: len(COLOURS)]
        devices = sorted({snapshot.device for snapshot in snapshots})
        if len(devices) <= len(DOT_SHAPES):
            return cls(drawn, len(classes), devices, "device")
        return cls(drawn, len(classes), sorted({snapshot.domain for snapshot in snapshots}), "domain")

    def group(self, snapshot: Snapshot) -> int:
        return self.groups.index(snapshot.device if self.group_kind == "device" else snapshot.domain)

    def group_colour(self, group: int) -> str:
        return COLOURS[group % len(COLOURS)]

    def shape(self, group: int) -> str:
        return DOT_SHAPES[group % len(DOT_SHAPES)]

    def colour(self, label: int) -> str:
        return COLOURS[self.classes.index(label)]

    def dots_by_class(self, layout: ProjectedPoints) -> list[Dots]:
        dots = []
        for snapshot, positions in zip(layout.snapshots, layout.sample_positions, strict=True):
            shape = self.shape(self.group(snapshot))
            for c in np.unique(snapshot.labels).tolist():
                own = positions[snapshot.labels == c].tolist()
                dots.append(Dots(own, self.colour(c), shape, f"class {c}, {snapshot_name(snapshot)}"))
        return dots

    def dots_by_group(self, layout: ProjectedPoints, faint: bool = False) -> list[Dots]:
        dots = []
        for snapshot, positions in zip(layout.snapshots, layout.sample_positions, strict=True):
            group = self.group(snapshot)
            colour, shape = self.group_colour(group), self.shape(group)
            dots.append(Dots(positions.tolist(), colour, shape, snapshot_name(snapshot), faint))
        return dots

    def class_marks(self, layout: ProjectedPoints, filled: bool = True) -> list[Mark]:
        """Return the marks of anchors and global prototypes.

        For each class, one mark shows the number of the class.
        """
        marks, numbered = [], set()
        size = 4.4 if sum(len(points.labels) for points in layout.class_points) > CROWDED else 6.0
        for points, positions in zip(layout.class_points, layout.class_positions, strict=True):
            for c, position in zip(points.labels.tolist(), positions.tolist(), strict=True):
                colour, name = self.colour(c) if filled else NO_FILL, f"{points.kind} of class {c}"
                number = "" if c in numbered else str(c)
                marks.append(Mark(position, colour, mark_shape(points.kind), name, size, number))
                numbered.add(c)
        return marks

    def class_tags(self, layout: ProjectedPoints) -> list[tuple[Position, str]]:
        """Return a tag with the number of each class. If the picture has marks of classes, return no tags.

        A tag is at the median of the points of its class. If these points form no cluster, the class has no tag.
        """
        if layout.class_points:
            return []
        labels = np.concatenate([snapshot.labels for snapshot in layout.snapshots])
        positions = np.concatenate(layout.sample_positions)
        medians = {c: np.median(positions[labels == c], axis=0) for c in np.unique(labels).tolist()}
        return [
            (median.tolist(), str(c))
            for c, median in medians.items()
            if np.mean(labels[np.square(positions - median).sum(axis=1).argsort()[:9]] == c) > 0.5
        ]

    def sized_marks(self, layout: ProjectedPoints, kind: str, snapshots: Sequence[Snapshot]) -> list[Mark]:
        """Return marks whose area is proportional to their number of samples, or to their share of all samples."""
        groups = {snapshot.device: self.group(snapshot) for snapshot in snapshots}
        pairs = zip(layout.class_points, layout.class_positions, strict=True)
        chosen = [(points, positions) for points, positions in pairs if points.kind == kind]
        largest = max((float(p.sizes.max(initial=0.0)) for p, _ in chosen), default=0.0) or 1.0
        tagged = sum(len(points.labels) for points, _ in chosen) <= MAX_SIZE_TAGS
        marks = []
        for points, positions in chosen:
            colour = self.group_colour(groups[points.device]) if points.device else WHITE
            name = f"{kind} of {points.device}" if points.device else kind
            for position, size in zip(positions.tolist(), points.sizes.tolist(), strict=True):
                width = max(MIN_MARK_SIZE, MAX_MARK_SIZE * max(0.0, size / largest) ** 0.5)
                tag = f"{size:.3g}" if tagged else ""
                marks.append(Mark(position, colour, mark_shape(kind), f"{name}: {size:.3g}", width, tag))
        return marks

    def class_legend(self) -> list[LegendEntry]:
        return [LegendEntry("class"), *(LegendEntry(str(c), self.colour(c), "square") for c in self.classes)]

    def group_legend(self, coloured: bool) -> list[LegendEntry]:
        colours = [self.group_colour(i) if coloured else GREY for i in range(len(self.groups))]
        entries = [LegendEntry(name, colours[i], self.shape(i)) for i, name in enumerate(self.groups)]
        return [LegendEntry(self.group_kind), *entries]


def snapshot_name(snapshot: Snapshot) -> str:
    same = snapshot.device == snapshot.domain
    return snapshot.device if same else f"{snapshot.device} ({snapshot.domain})"


def mark_shape(kind: str) -> str:
    return SHAPES.get(kind, "star")


def mark_legend(kinds: Sequence[str]) -> list[LegendEntry]:
    entries = [LegendEntry(f"{kind}s", NO_FILL, mark_shape(kind), outlined=True) for kind in kinds]
    return [LegendEntry("large"), *entries] if entries else []
