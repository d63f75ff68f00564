"""Make the HTML page of a comparison: tables, accuracy over rounds and over bytes, and margins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from html import escape
from statistics import fmean, stdev

from protofleet.lab.report.compared_energy import is_measured, joules_picture
from protofleet.lab.report.comparison import Group, MeasuredPoint
from protofleet.lab.report.comparison_tables import Table, columns_of_words
from protofleet.lab.report.drawing.charts import Bar, ChartLine, bar_chart, line_chart
from protofleet.lab.report.drawing.palette import INK, line_style
from protofleet.lab.report.grid_charts import grid_section
from protofleet.lab.report.html_page import page, section, table
from protofleet.lab.report.numbers import NONE, percent, two_places
from protofleet.lab.report.sections.margins import BASELINE, Margins, margins_of_run, mean, ratio
from protofleet.lab.report.settings_difference import settings_difference
from protofleet.protocol.link.meter import human_bytes

RUN_COLUMNS = ("seed", "rounds", "network", "seconds")
# The axis of bytes is logarithmic if the ratio of the largest value to the smallest value is above this limit.
LOG_AXIS_RATIO = 30.0


def comparison_page(
    groups: Sequence[Group], tables: Sequence[Table], title: str = "", pictures: Sequence[str] = ()
) -> str:
    """Return the page; `pictures` are further sections, which follow the tables."""
    sections = [
        *map(table_section, tables),
        *pictures,
        settings_section(groups),
        grid_section(groups),
        curves_section(groups),
        margins_section(groups),
        runs_section(groups),
    ]
    title = title or f"{len(groups)} experiments compared"
    return page(title, f"<h1>{escape(title)}</h1>{''.join(sections)}", "wide")


def table_section(found: Table) -> str:
    html = table(found.title, found.head, found.rows, found.best, left=found.words)
    return section(found.title, html, note=found.legend)


def settings_section(groups: Sequence[Group]) -> str:
    """Return the section with the settings in which the runs differ. The report of each run has all settings."""
    found = settings_difference(groups)
    if not found.rows:
        return ""
    return section(
        "What differs", table("Settings that differ", found.head, found.rows, words=True), note=found.note
    )


def curves_section(groups: Sequence[Group]) -> str:
    by_rounds = [accuracy_line(i, group, lambda p: p.rounds) for i, group in enumerate(groups)]
    by_bytes = [accuracy_line(i, group, lambda p: p.bytes) for i, group in enumerate(groups)]
    sizes = [x for line in by_bytes for x, _ in line.points if x > 0]
    if not any(line.points for line in by_rounds):
        return ""
    log = bool(sizes) and max(sizes) > LOG_AXIS_RATIO * min(sizes)
    if log:
        by_bytes = [without_zero(line) for line in by_bytes]
    text = (
        "Mean test accuracy over domains; with several seeds their mean, and a band of one standard deviation. "
        f"Views: {'; '.join(f'{group.name}: {group.view}' for group in groups)}."
    )
    axis = "tensor bytes, up and down"
    if log:
        axis += "; the axis is logarithmic, points at 0 bytes are left out"
    rounds_chart = line_chart(by_rounds, percent, "rounds of training", "mean accuracy over rounds")
    bytes_chart = line_chart(
        by_bytes, percent, axis, "mean accuracy over bytes", x_format=human_bytes, log_x=log
    )
    by_joules = [accuracy_line(i, g, lambda p: p.joules) for i, g in enumerate(groups) if is_measured(g)]
    return section(
        "Accuracy over rounds and over bytes",
        f"<h3>over rounds</h3>{rounds_chart}<h3>over bytes that have crossed</h3>{bytes_chart}"
        f"{joules_picture(groups, by_joules)}",
        note=text,
    )


def accuracy_line(i: int, group: Group, x_of: Callable[[MeasuredPoint], float]) -> ChartLine:
    """Return the line of a group: the mean over its runs, for the rounds that all runs have measured.

    If a run has two measurements for a round, the later measurement is used.
    """
    by_round = [{point.rounds: point for point in run.points_by_all(group.view)} for run in group.runs]
    shared = sorted(set.intersection(*(set(points) for points in by_round)))
    data, band = [], []
    for number in shared:
        x = fmean(x_of(points[number]) for points in by_round)
        values = [points[number].accuracy["mean"] for points in by_round]
        data.append((x, fmean(values)))
        if len(values) > 1:
            band.append((x, fmean(values) - stdev(values), fmean(values) + stdev(values)))
    colour, dash = line_style(i)
    return ChartLine(group.name, data, colour, dash=dash, band=band)


def without_zero(line: ChartLine) -> ChartLine:
    return replace(line, points=[p for p in line.points if p[0] > 0], band=[b for b in line.band if b[0] > 0])


def margins_section(groups: Sequence[Group]) -> str:
    """Return the figure of margins (fig. 1 of FedLSA's paper), for runs with saved features and class positions.

    Class positions are anchors or prototypes.
    """
    found = [
        (line_style(i)[0], k > 0, *named)
        for i, group in enumerate(groups)
        for k, named in enumerate(group_margins(group))
    ]
    if not found:
        return ""
    width = 0.8 / len(found)
    elements, rows = [], []
    for i, (_, _, name, gaps, local) in enumerate(found):
        for label, gap in sorted(gaps.items()):
            x = label + width * (i - (len(found) - 1) / 2)
            elements.append(Bar(x, [(name, gap)], width * 0.8))
            if label in local:
                elements.append(Bar(x, [(BASELINE, local[label])], width * 0.95, outlined=True))
        share = ratio(gaps, local)
        rows.append([
            name, f"{mean(gaps):.3f}", f"{mean(local):.3f}" if local else NONE,
            NONE if share is None else two_places(share),
        ])  # fmt: skip
    colours = {name: colour for colour, _, name, _, _ in found} | {BASELINE: INK}
    faint = [name for _, second, name, _, _ in found if second]
    picture = bar_chart(elements, colours, two_places, "class", "margins of every class by run", faint)
    head = ["run", "mean margin", "mean of the largest local", "ratio"]
    text = (
        "Distance from a class's anchor or prototype to the nearest one of another class (FedLSA, fig. 1), at the "
        "end of each run. Outlined: the largest margin of the class among the class means of any one device. "
        "Distances in different feature spaces cannot be compared; the ratio can."
    )
    return section("Margins", picture, table("Mean margins over classes", head, rows), note=text)


def group_margins(group: Group) -> list[tuple[str, Margins, Margins]]:
    """Return the mean margins of a group's anchors and prototypes, if its runs have saved any.

    Each item has a name, the shared margins and the local margins. Each mean is over the group's runs.
    """
    saved = [(local, shared) for run in group.runs for _, local, shared in [margins_of_run(run.folder)]]
    kinds = list(dict.fromkeys(kind for _, shared in saved for kind in shared))
    local = mean_margins([gaps for gaps, _ in saved])
    return [
        (
            group.name if len(kinds) == 1 else f"{group.name}: {kind}s",
            mean_margins([shared[kind] for _, shared in saved if kind in shared]),
            local,
        )
        for kind in kinds
    ]


def mean_margins(margins: Sequence[Margins]) -> Margins:
    classes = sorted({label for gaps in margins for label in gaps})
    return {label: fmean(gaps[label] for gaps in margins if label in gaps) for label in classes}


def runs_section(groups: Sequence[Group]) -> str:
    rows = [
        [str(run.folder), group.name, *(str(run.summary.get(name, NONE)) for name in RUN_COLUMNS)]
        for group in groups
        for run in group.runs
    ]
    head = ["folder", "run", *RUN_COLUMNS]
    return section("Runs", table("Folders of the runs", head, rows, left=columns_of_words(rows)))
