"""How classes, devices, anchors and prototypes look in pictures of features: the same in every panel of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from protofleet.deploy.report.charts import COLOURS, GREY
from protofleet.deploy.report.pictures import ANCHOR, LOCAL, Layout, Scene
from protofleet.deploy.report.scatter import DOT_SHAPES, Dots, Key, Mark, Place

CROWD = 15  # marks in one panel that have to be smaller
MOST_SIZES = 12  # that are written beside their marks
HOLLOW, WHITE = "none", "var(--paper)"
SHAPES = {ANCHOR: "diamond", LOCAL: "circle"}  # else a star
SMALLEST, LARGEST = 4.0, 13.0  # half of a mark's width, in pixels


@dataclass(frozen=True)
class Looks:
    classes: Sequence[int]  # those that are drawn; a class has the colour of its place
    held: int  # classes there are
    groups: Sequence[str]  # devices, or domains where there are more devices than shapes
    who: str  # "device" or "domain"

    @classmethod
    def of(cls, scenes: Sequence[Scene]) -> Looks:
        held = sorted({int(c) for scene in scenes for c in np.unique(scene.labels)})
        devices = sorted({scene.device for scene in scenes})
        if len(devices) <= len(DOT_SHAPES):
            return cls(held[: len(COLOURS)], len(held), devices, "device")
        return cls(held[: len(COLOURS)], len(held), sorted({scene.domain for scene in scenes}), "domain")

    def group(self, scene: Scene) -> int:
        return self.groups.index(scene.device if self.who == "device" else scene.domain)

    def group_colour(self, group: int) -> str:
        return COLOURS[group % len(COLOURS)]

    def shape(self, group: int) -> str:
        return DOT_SHAPES[group % len(DOT_SHAPES)]

    def colour(self, label: int) -> str:
        return COLOURS[self.classes.index(label)]

    def dots_by_class(self, made: Layout) -> list[Dots]:
        return [
            Dots(
                places[scene.labels == c].tolist(),
                self.colour(c),
                self.shape(self.group(scene)),
                name_of(scene, c),
            )
            for scene, places in zip(made.scenes, made.clouds, strict=True)
            for c in np.unique(scene.labels).tolist()
        ]

    def dots_by_group(self, made: Layout, faint: bool = False) -> list[Dots]:
        drawn = []
        for scene, places in zip(made.scenes, made.clouds, strict=True):
            group = self.group(scene)
            drawn.append(
                Dots(places.tolist(), self.group_colour(group), self.shape(group), name_of(scene), faint)
            )
        return drawn

    def class_marks(self, made: Layout, hollow: bool = False) -> list[Mark]:
        """Anchors and global prototypes; one of each class carries its number."""
        drawn, told = [], set()
        crowded = sum(len(marks.labels) for marks in made.marks) > CROWD
        for marks, places in zip(made.marks, made.spots, strict=True):
            for c, place in zip(marks.labels.tolist(), places.tolist(), strict=True):
                colour, name = HOLLOW if hollow else self.colour(c), f"{marks.kind} of class {c}"
                number = "" if c in told else str(c)
                drawn.append(Mark(place, colour, shape_of(marks.kind), name, 4.4 if crowded else 6.0, number))
                told.add(c)
        return drawn

    def class_tags(self, made: Layout) -> list[tuple[Place, str]]:
        """Where nothing marks the classes: their numbers in the middle of those that keep together."""
        if made.marks:
            return []
        labels = np.concatenate([scene.labels for scene in made.scenes])
        places = np.concatenate(made.clouds)
        middles = {c: np.median(places[labels == c], axis=0) for c in np.unique(labels).tolist()}
        return [
            (middle.tolist(), str(c))
            for c, middle in middles.items()
            if np.mean(labels[np.square(places - middle).sum(axis=1).argsort()[:9]] == c) > 0.5
        ]

    def sized_marks(self, made: Layout, kind: str, scenes: Sequence[Scene]) -> list[Mark]:
        """The area of a mark goes with its size: samples it stands for, or its share of them."""
        groups = {scene.device: self.group(scene) for scene in scenes}
        chosen = [(m, places) for m, places in zip(made.marks, made.spots, strict=True) if m.kind == kind]
        largest = max((float(m.sizes.max(initial=0.0)) for m, _ in chosen), default=0.0) or 1.0
        tagged = sum(len(m.labels) for m, _ in chosen) <= MOST_SIZES
        drawn = []
        for m, places in chosen:
            colour = self.group_colour(groups[m.device]) if m.device else WHITE
            name = f"{kind} of {m.device}" if m.device else kind
            for place, size in zip(places.tolist(), m.sizes.tolist(), strict=True):
                width = max(SMALLEST, LARGEST * max(0.0, size / largest) ** 0.5)
                words = f"{size:.3g}"
                drawn.append(
                    Mark(place, colour, shape_of(kind), f"{name}: {words}", width, words if tagged else "")
                )
        return drawn

    def class_keys(self) -> list[Key]:
        return [Key("class"), *(Key(str(c), self.colour(c), "square") for c in self.classes)]

    def group_keys(self, coloured: bool) -> list[Key]:
        named = enumerate(self.groups)
        return [
            Key(self.who),
            *(Key(name, self.group_colour(i) if coloured else GREY, self.shape(i)) for i, name in named),
        ]


def name_of(scene: Scene, label: int | None = None) -> str:
    who = scene.device if scene.device == scene.domain else f"{scene.device} ({scene.domain})"
    return who if label is None else f"class {label}, {who}"


def shape_of(kind: str) -> str:
    return SHAPES.get(kind, "star")


def mark_keys(kinds: Sequence[str]) -> list[Key]:
    return [Key("large"), *(Key(f"{k}s", HOLLOW, shape_of(k), outlined=True) for k in kinds)] if kinds else []
