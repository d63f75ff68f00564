"""Make the sections about the feature space: margins, features over rounds, and the prototypes of one class.

The sections show figs. 1 and 4 of FedLSA's paper, fig. 4 of FedPall's paper and the upper row of fig. 2 of
FedPLCC's paper. The figures are made from files that a run has saved. If a run has not saved the files for a
section, the section is empty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from protofleet.lab.report.drawing.charts import Bar, bar_chart
from protofleet.lab.report.drawing.palette import COLOURS, INK
from protofleet.lab.report.drawing.scatter import Panel, scatter_plot
from protofleet.lab.report.html_page import section
from protofleet.lab.report.numbers import two_places
from protofleet.lab.report.sections.margins import BASELINE, Margins, margins_of_run, mean, ratio
from protofleet.lab.report.sections.plot_style import PlotStyle, mark_legend
from protofleet.lab.report.sections.projection import (
    ProjectedPoints,
    evenly_spaced,
    points_of_classes,
    project_snapshots,
    samples_of_classes,
)
from protofleet.lab.report.sections.snapshots import (
    ANCHOR,
    GLOBAL,
    LOCAL,
    ClassPoints,
    Snapshot,
    read_snapshots,
    received_points,
    saved_rounds,
    sent_points,
)

MAX_PANELS = 6  # Maximum number of rounds whose features are drawn.
PANEL_POINTS = 600  # Maximum number of points in each panel.


def feature_sections(folder: Path, rounds: int) -> str:
    return margins_section(folder, rounds) + features_section(folder, rounds) + class_section(folder, rounds)


def round_name(number: int, rounds: int) -> str:
    return f"round {number}" if number <= rounds else "last evaluation"


def margins_section(folder: Path, rounds: int) -> str:
    """Draw the margins between classes, as in fig. 1 of FedLSA's paper."""
    number, local, shared = margins_of_run(folder)
    if not shared:
        return ""
    names = {f"{kind.removeprefix('global ')}s": gaps for kind, gaps in shared.items()}
    colours = {name: COLOURS[i] for i, name in enumerate(names)} | {BASELINE: INK}
    elements = margin_bars({**names, **({BASELINE: local} if local else {})})
    picture = bar_chart(elements, colours, two_places, "class", "margins of every class, local and global")
    means = [f"{name} {mean(gaps):.3f}{ratio_text(gaps, local)}" for name, gaps in names.items()]
    means += [f"largest local ones {mean(local):.3f}"] if local else []
    text = (
        "Distance from a class's anchor or prototype to the nearest one of another class (FedLSA, fig. 1); "
        f"{round_name(number, rounds)}. Outlined: the largest margin of the class among the class means of any "
        f"one device. Means over classes: {'; '.join(means)}."
    )
    if ANCHOR in shared:
        text += " Where anchors are unit vectors, all vectors are scaled to unit length."
    return section("Margins, local and global", picture, note=text)


def margin_bars(by_name: Mapping[str, Margins]) -> list[Bar]:
    """Return the bars of all names, next to each other for each class. The bars of the baseline are outlined."""
    width = 0.8 / len(by_name)
    return [
        Bar(
            label + width * (i - (len(by_name) - 1) / 2),
            [(name, gap)],
            width * 0.9,
            outlined=name == BASELINE,
        )
        for i, (name, gaps) in enumerate(by_name.items())
        for label, gap in sorted(gaps.items())
    ]


def ratio_text(gaps: Margins, local: Margins) -> str:
    found = ratio(gaps, local)
    return "" if found is None else f" ({found:.2f} times the local)"


def features_section(folder: Path, rounds: int) -> str:
    """Draw the features over rounds, as in fig. 4 of FedLSA's paper and fig. 4 of FedPall's paper."""
    saved = saved_rounds(folder)
    snapshots = {number: read_snapshots(saved[number]) for number in evenly_spaced(list(saved), MAX_PANELS)}
    style = PlotStyle.of([snapshot for of_round in snapshots.values() for snapshot in of_round])
    layouts = {
        round_name(n, rounds): layout
        for n, of_round in snapshots.items()
        if (layout := class_layout(of_round, style))
    }
    if not layouts:
        return ""
    text = (
        "Features of the devices' training samples (FedLSA, fig. 4; FedPall, fig. 4): one t-SNE for each round, of "
        "all devices together, with the anchors or global prototypes that they had received. Neighbours stay "
        "neighbours; distances between clusters and their sizes mean little."
    )
    if len(snapshots) < len(saved):
        text += f" {len(snapshots)} of {len(saved)} saved rounds."
    if style.class_count > len(style.classes):
        text += f" {len(style.classes)} of {style.class_count} classes."
    return section("Features over rounds", feature_pictures(layouts, style), note=text)


def class_layout(snapshots: Sequence[Snapshot], style: PlotStyle) -> ProjectedPoints | None:
    class_points = [points_of_classes(m, style.classes) for m in received_points(snapshots)]
    return project_snapshots(
        [samples_of_classes(s, style.classes) for s in snapshots], class_points, PANEL_POINTS
    )


def feature_pictures(layouts: Mapping[str, ProjectedPoints], style: PlotStyle) -> str:
    kinds = mark_legend(
        list(dict.fromkeys(m.kind for layout in layouts.values() for m in layout.class_points))
    )
    by_class = [
        Panel(title, style.dots_by_class(layout), style.class_marks(layout), style.class_tags(layout))
        for title, layout in layouts.items()
    ]
    by_group = [
        Panel(title, style.dots_by_group(layout), style.class_marks(layout, filled=False))
        for title, layout in layouts.items()
    ]
    classes, groups = style.class_legend(), style.group_legend(coloured=True)
    if len(layouts) == 1:
        by_class = [replace(panel, title=f"{panel.title}: colour is class") for panel in by_class]
        by_group = [
            replace(panel, title=f"{panel.title}: colour is {style.group_kind}") for panel in by_group
        ]
        text = f"features by class and by {style.group_kind}"
        return scatter_plot([*by_class, *by_group], [*classes, *groups, *kinds], text)
    class_entries = [*classes, *style.group_legend(coloured=False), *kinds]
    class_plot = scatter_plot(by_class, class_entries, "features over rounds by class")
    group_plot = scatter_plot(by_group, [*groups, *kinds], f"features over rounds by {style.group_kind}")
    return (
        f"<h3>colour: class; shape: {style.group_kind}</h3>{class_plot}"
        f"<h3>the same, colour: {style.group_kind}</h3>{group_plot}"
    )


def class_section(folder: Path, rounds: int) -> str:
    """Draw the prototypes of one class, as in the upper row of fig. 2 of FedPLCC's paper.

    The section is empty if no class has more than one prototype. The server computes the global prototypes from the
    devices' prototypes of round r. The devices receive the global prototypes in the task of round r + 1.
    """
    saved = saved_rounds(folder)
    for number, paths in reversed(saved.items()):
        snapshots = read_snapshots(paths)
        local = [class_points for snapshot in snapshots if (class_points := sent_points(snapshot))]
        if local:
            next_saved = number + 1 if number + 1 in saved else number
            shared = [m for m in received_points(read_snapshots(saved[next_saved])) if m.kind == GLOBAL]
            text = f"Features and local prototypes: {round_name(number, rounds)}"
            return class_figure(
                snapshots, local, shared, f"{text}; global prototypes: {round_name(next_saved, rounds)}."
            )
    return ""


def class_figure(
    snapshots: Sequence[Snapshot], local: Sequence[ClassPoints], shared: Sequence[ClassPoints], caption: str
) -> str:
    label = class_to_show([*local, *shared])
    if label is None:
        return ""
    class_points = [points_of_classes(m, [label]) for m in (*local, *shared)]
    layout = project_snapshots(
        [samples_of_classes(snapshot, [label]) for snapshot in snapshots], class_points
    )
    if layout is None:
        return ""
    style = PlotStyle.of(snapshots)
    dots, faint = style.dots_by_group(layout), style.dots_by_group(layout, faint=True)
    panels = [
        Panel("features", dots),
        Panel("local prototypes, by samples", faint, style.sized_marks(layout, LOCAL, snapshots)),
        Panel("global prototypes, by share", faint, style.sized_marks(layout, GLOBAL, snapshots)),
    ]
    entries = [*style.group_legend(coloured=True), *mark_legend([LOCAL, GLOBAL])]
    text = (
        f"One t-SNE of the features of the devices' samples of class {label}, of the prototypes that the devices "
        f"computed from them and of the server's (FedPLCC, fig. 2). {caption}"
    )
    picture = scatter_plot(
        panels, entries, f"features, local and global prototypes of class {label}", columns=3
    )
    return section(f"Prototypes of class {label}", picture, note=text)


def class_to_show(class_points: Sequence[ClassPoints]) -> int | None:
    """Return class 0, as in the paper, if a device or the server has several points of class 0.

    Otherwise return the class with the most points among the classes with several points.
    """
    several = {c for points in class_points for c, n in Counter(points.labels.tolist()).items() if n > 1}
    if not several:
        return None
    total = Counter(c for points in class_points for c in points.labels.tolist())
    return 0 if 0 in several else max(sorted(several), key=total.__getitem__)
