"""The report's sections about the feature space: margins, features over rounds, the prototypes of one class.

They are FedLSA's figs. 1 and 4, FedPall's fig. 4 and the upper row of FedPLCC's fig. 2, drawn from what a run
has saved. A section is empty where that does not hold what it needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

from protofleet.deploy.report.charts import COLOURS, GREY, Bar, bars
from protofleet.deploy.report.pictures import (
    ANCHOR,
    GLOBAL,
    LOCAL,
    Layout,
    Margins,
    Marks,
    Scene,
    evenly,
    lay_out,
    margins_of_run,
    marks_of_classes,
    of_classes,
    read_scenes,
    received_marks,
    saved_rounds,
    sent_marks,
)
from protofleet.deploy.report.plot_style import Looks, mark_keys
from protofleet.deploy.report.scatter import Panel, scatter

ROUNDS = 6  # small pictures of features over rounds
SMALL = 600  # points in each of them
BASELINE = "local, largest"
NONE = "-"


def feature_sections(folder: Path, rounds: int) -> str:
    return margins_section(folder, rounds) + features_section(folder, rounds) + class_section(folder, rounds)


def moment(number: int, rounds: int) -> str:
    return f"round {number}" if number <= rounds else "last evaluation"


def margins_section(folder: Path, rounds: int) -> str:
    """FedLSA fig. 1."""
    number, local, shared = margins_of_run(folder)
    if not shared:
        return ""
    names = {f"{kind.removeprefix('global ')}s": gaps for kind, gaps in shared.items()}
    colours = {name: COLOURS[i] for i, name in enumerate(names)} | {BASELINE: GREY}
    drawn = margin_bars({**names, **({BASELINE: local} if local else {})})
    picture = bars(drawn, colours, two_places, "class", "margins of every class, local and global")
    said = [f"{name} {mean(gaps):.3f}{against(gaps, local)}" for name, gaps in names.items()]
    said += [f"largest local ones {mean(local):.3f}"] if local else []
    words = (
        "How far a class's anchor or prototype is from the nearest one of another class (FedLSA, fig. 1); "
        f"{moment(number, rounds)}. Outlined: the largest margin that the class has among the class means of any "
        f"one device. Means over classes: {'; '.join(said)}."
    )
    if ANCHOR in shared:
        words += " Where anchors are unit vectors, everything is taken at unit length."
    return f"<section><h2>Margins, local and global</h2><p>{escape(words)}</p>{picture}</section>"


def margin_bars(by_name: Mapping[str, Margins]) -> list[Bar]:
    """Side by side in each class; the baseline is an outline."""
    width = 0.8 / len(by_name)
    return [
        Bar(label + width * (i - (len(by_name) - 1) / 2), [(name, gap)], width * 0.9, hollow=name == BASELINE)
        for i, (name, gaps) in enumerate(by_name.items())
        for label, gap in sorted(gaps.items())
    ]


def against(gaps: Margins, local: Margins) -> str:
    found = ratio(gaps, local)
    return f" ({found} times the local)" if found != NONE else ""


def ratio(gaps: Margins, local: Margins) -> str:
    """Distances in different spaces cannot be compared between methods; this can."""
    both = gaps.keys() & local.keys()
    base = sum(local[c] for c in both)
    return f"{sum(gaps[c] for c in both) / base:.2f}" if base > 0 else NONE


def mean(gaps: Margins) -> float:
    return sum(gaps.values()) / len(gaps) if gaps else 0.0


def two_places(value: float) -> str:
    return f"{value:.2f}"


def features_section(folder: Path, rounds: int) -> str:
    """FedLSA fig. 4 and FedPall fig. 4."""
    saved = saved_rounds(folder)
    scenes = {number: read_scenes(saved[number]) for number in evenly(list(saved), ROUNDS)}
    looks = Looks.of([scene for some in scenes.values() for scene in some])
    layouts = {moment(n, rounds): made for n, some in scenes.items() if (made := class_layout(some, looks))}
    if not layouts:
        return ""
    words = (
        "What the devices' models make of their training images (FedLSA, fig. 4; FedPall, fig. 4): one t-SNE for "
        "each round, over all devices together with the anchors or global prototypes that they had received. "
        "It keeps neighbours together; how far clouds are apart, and how wide they are, means little."
    )
    if len(scenes) < len(saved):
        words += f" {len(scenes)} of {len(saved)} saved rounds."
    if looks.held > len(looks.classes):
        words += f" {len(looks.classes)} of {looks.held} classes."
    return f"<section><h2>Features over rounds</h2><p>{escape(words)}</p>{feature_pictures(layouts, looks)}</section>"


def class_layout(scenes: Sequence[Scene], looks: Looks) -> Layout | None:
    marks = [marks_of_classes(m, looks.classes) for m in received_marks(scenes)]
    return lay_out([of_classes(s, looks.classes) for s in scenes], marks, SMALL)


def feature_pictures(layouts: Mapping[str, Layout], looks: Looks) -> str:
    kinds = mark_keys(list(dict.fromkeys(m.kind for made in layouts.values() for m in made.marks)))
    by_class = [
        Panel(when, looks.dots_by_class(made), looks.class_marks(made), looks.class_tags(made))
        for when, made in layouts.items()
    ]
    by_group = [
        Panel(when, looks.dots_by_group(made), looks.class_marks(made, hollow=True))
        for when, made in layouts.items()
    ]
    classes, groups = looks.class_keys(), looks.group_keys(coloured=True)
    if len(layouts) == 1:
        by_class = [replace(panel, title=f"{panel.title}: colour is class") for panel in by_class]
        by_group = [replace(panel, title=f"{panel.title}: colour is {looks.who}") for panel in by_group]
        words = f"features by class and by {looks.who}"
        return scatter([*by_class, *by_group], [*classes, *groups, *kinds], words)
    keys = [*classes, *looks.group_keys(coloured=False), *kinds]
    return (
        f"<h3>colour: class; shape: {looks.who}</h3>{scatter(by_class, keys, 'features over rounds by class')}"
        f"<h3>the same, colour: {looks.who}</h3>"
        f"{scatter(by_group, [*groups, *kinds], f'features over rounds by {looks.who}')}"
    )


def class_section(folder: Path, rounds: int) -> str:
    """FedPLCC fig. 2, upper row; drawn where a class has more than one prototype.

    The global prototypes made of those that devices sent in round r are received in the task of round r + 1.
    """
    saved = saved_rounds(folder)
    for number, paths in reversed(saved.items()):
        scenes = read_scenes(paths)
        local = [marks for scene in scenes if (marks := sent_marks(scene))]
        if local:
            after = number + 1 if number + 1 in saved else number
            shared = [m for m in received_marks(read_scenes(saved[after])) if m.kind == GLOBAL]
            words = f"Features and local prototypes: {moment(number, rounds)}"
            return one_class(scenes, local, shared, f"{words}; global prototypes: {moment(after, rounds)}.")
    return ""


def one_class(scenes: Sequence[Scene], local: Sequence[Marks], shared: Sequence[Marks], when: str) -> str:
    label = class_to_show([*local, *shared])
    if label is None:
        return ""
    marks = [marks_of_classes(m, [label]) for m in (*local, *shared)]
    made = lay_out([of_classes(scene, [label]) for scene in scenes], marks)
    if made is None:
        return ""
    looks = Looks.of(scenes)
    dots, faint = looks.dots_by_group(made), looks.dots_by_group(made, faint=True)
    panels = [
        Panel("features", dots),
        Panel("local prototypes, by samples", faint, looks.sized_marks(made, LOCAL, scenes)),
        Panel("global prototypes, by share", faint, looks.sized_marks(made, GLOBAL, scenes)),
    ]
    keys = [*looks.group_keys(coloured=True), *mark_keys([LOCAL, GLOBAL])]
    words = (
        f"One t-SNE of what the devices' models make of their images of class {label}, of the prototypes that they "
        f"made of them and of the server's (FedPLCC, fig. 2). {when}"
    )
    picture = scatter(panels, keys, f"features, local and global prototypes of class {label}", columns=3)
    return f"<section><h2>Prototypes of class {label}</h2><p>{escape(words)}</p>{picture}</section>"


def class_to_show(marks: Sequence[Marks]) -> int | None:
    """Class 0, as in the paper, where one device or the server has several of it; else the one with most."""
    several = {c for some in marks for c, n in Counter(some.labels.tolist()).items() if n > 1}
    if not several:
        return None
    total = Counter(c for some in marks for c in some.labels.tolist())
    return 0 if 0 in several else max(sorted(several), key=total.__getitem__)
