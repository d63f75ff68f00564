"""A comparison as one HTML page: the tables, accuracy over rounds and over bytes, margins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from html import escape
from statistics import fmean, stdev

from protofleet.deploy.report.charts import COLOURS, Bar, Line, bars, lines
from protofleet.deploy.report.comparison import Group, Point
from protofleet.deploy.report.comparison_tables import Table
from protofleet.deploy.report.html_page import page, table
from protofleet.deploy.report.margins import BASELINE, Margins, margins_of_run, mean, ratio
from protofleet.deploy.report.numbers import NONE, human_bytes, percent, two_places

PALE = "88"  # after a colour: half of it, for the second kind of bar of one run
DASHES = ("", "7 3", "2 3")  # for more groups than colours
SHOWN = ("seed", "rounds", "network", "seconds")
WIDE = 30.0  # times as many bytes at one end as at the other: a logarithmic axis


def comparison_page(groups: Sequence[Group], shown: Sequence[Table]) -> str:
    sections = [
        *map(table_section, shown),
        curves_section(groups),
        margins_section(groups),
        runs_section(groups),
    ]
    title = f"{len(groups)} experiments compared"
    return page(title, f"<h1>{escape(title)}</h1>{''.join(sections)}", "wide")


def table_section(shown: Table) -> str:
    inside = table(shown.head, shown.rows)
    return f"<section><h2>{escape(shown.title)}</h2>{inside}<p>{escape(shown.note)}</p></section>"


def curves_section(groups: Sequence[Group]) -> str:
    by_rounds = [line_of(i, group, lambda p: p.rounds) for i, group in enumerate(groups)]
    by_bytes = [line_of(i, group, lambda p: p.bytes) for i, group in enumerate(groups)]
    crossed = [x for line in by_bytes for x, _ in line.points if x > 0]
    if not any(line.points for line in by_rounds):
        return ""
    log = bool(crossed) and max(crossed) > WIDE * min(crossed)
    if log:
        by_bytes = [positive(line) for line in by_bytes]
    text = (
        "Mean test accuracy over domains; with several seeds their mean, and a band of one standard deviation. "
        f"Views: {'; '.join(f'{group.name}: {group.view}' for group in groups)}."
    )
    axis = "tensor bytes, up and down"
    if log:
        axis += "; the axis is logarithmic, points at 0 bytes are left out"
    rounds = lines(by_rounds, percent, "rounds of training", "mean accuracy over rounds")
    sizes = lines(by_bytes, percent, axis, "mean accuracy over bytes", x_format=human_bytes, log_x=log)
    return (
        f"<section><h2>Accuracy over rounds and over bytes</h2><p>{escape(text)}</p>"
        f"<h3>over rounds</h3>{rounds}<h3>over bytes that have crossed</h3>{sizes}</section>"
    )


def line_of(i: int, group: Group, x_of: Callable[[Point], float]) -> Line:
    """Of the rounds that all runs of the group have measured; of two points of one round the later."""
    by_run = [{point.rounds: point for point in run.points(group.view)} for run in group.runs]
    shared = sorted(set.intersection(*(set(found) for found in by_run)))
    data, band = [], []
    for number in shared:
        x = fmean(x_of(found[number]) for found in by_run)
        values = [found[number].accuracy["mean"] for found in by_run]
        data.append((x, fmean(values)))
        if len(values) > 1:
            band.append((x, fmean(values) - stdev(values), fmean(values) + stdev(values)))
    colour, dash = line_style(i)
    return Line(group.name, data, colour, dash=dash, band=band)


def line_style(i: int) -> tuple[str, str]:
    return COLOURS[i % len(COLOURS)], DASHES[i // len(COLOURS) % len(DASHES)]


def positive(line: Line) -> Line:
    return replace(line, points=[p for p in line.points if p[0] > 0], band=[b for b in line.band if b[0] > 0])


def margins_section(groups: Sequence[Group]) -> str:
    """FedLSA fig. 1 for several runs, of those that have saved what it needs."""
    found = [
        (line_style(i)[0] + PALE * (k > 0), *named)
        for i, group in enumerate(groups)
        for k, named in enumerate(margins_of(group))
    ]
    if not found:
        return ""
    width = 0.8 / len(found)
    elements, rows = [], []
    for i, (_, name, gaps, local) in enumerate(found):
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
    colours = {name: colour for colour, name, _, _ in found} | {BASELINE: "var(--ink)"}
    picture = bars(elements, colours, two_places, "class", "margins of every class by run")
    head = ["run", "mean margin", "mean of the largest local", "ratio"]
    text = (
        "Distance from a class's anchor or prototype to the nearest one of another class (FedLSA, fig. 1), at the "
        "end of each run. Outlined: the largest margin of the class among the class means of any one device. "
        "Distances in different feature spaces cannot be compared; the ratio can."
    )
    return f"<section><h2>Margins</h2><p>{text}</p>{picture}{table(head, rows)}</section>"


def margins_of(group: Group) -> list[tuple[str, Margins, Margins]]:
    """(name, shared, local) for anchors, prototypes or both; means over the group's runs."""
    saved = [(local, shared) for run in group.runs for _, local, shared in [margins_of_run(run.folder)]]
    kinds = list(dict.fromkeys(kind for _, shared in saved for kind in shared))
    local = average([gaps for gaps, _ in saved])
    return [
        (
            group.name if len(kinds) == 1 else f"{group.name}: {kind}s",
            average([shared[kind] for _, shared in saved if kind in shared]),
            local,
        )
        for kind in kinds
    ]


def average(found: Sequence[Margins]) -> Margins:
    classes = sorted({label for gaps in found for label in gaps})
    return {label: fmean(gaps[label] for gaps in found if label in gaps) for label in classes}


def runs_section(groups: Sequence[Group]) -> str:
    rows = [
        [str(run.folder), group.name, *(str(run.summary.get(name, NONE)) for name in SHOWN)]
        for group in groups
        for run in group.runs
    ]
    head = ["folder", "run", *SHOWN]
    return f"<section><h2>Runs</h2>{table(head, rows)}</section>"
