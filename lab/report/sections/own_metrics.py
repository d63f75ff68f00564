"""Make the section about the metrics that the user has added: each metric over rounds, by domain and as a mean."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from protofleet.coordinator.observe.curves import is_global, rounds_done
from protofleet.coordinator.observe.record import MEAN
from protofleet.lab.report.drawing.charts import ChartLine, line_chart
from protofleet.lab.report.drawing.palette import INK, line_style
from protofleet.lab.report.finished_run import FinishedRun
from protofleet.lab.report.html_page import section, table
from protofleet.lab.report.numbers import NONE, three_places
from protofleet.lab.report.sections.accuracy import ROUNDS_NOTE, VIEWS

# The name of a figure: the metric, the view and the domain. Figures with other names belong to a method and have no
# mean.
FIGURE: Final = re.compile(r"([a-z][a-z0-9_]*)\.((?:global|personal)(?:-[^.]+)?)\.(.+)")

# Pairs (rounds of training, value), by domain. The key MEAN has the mean over the domains.
Points = dict[str, list[tuple[float, float]]]


def own_metrics_section(run: FinishedRun) -> str:
    found = measured(run)
    if not found:
        return ""
    view = run.summary["reports"]
    pictures = [picture(name, views[view]) for name, views in found.items() if view in views]
    note = f"Shown: {VIEWS[view]}. {ROUNDS_NOTE}"
    return section("Metrics of your own", *pictures, metrics_table(found, view), note=note)


def measured(run: FinishedRun) -> dict[str, dict[str, Points]]:
    """Return the measured points of each view of each metric."""
    found: dict[str, dict[str, Points]] = {}
    done = rounds_done(run.rounds)
    for line in run.rounds:
        figures = line.get("figures", {})
        for key, value in figures.items():
            named = FIGURE.fullmatch(key)
            if named and f"{named[1]}.{named[2]}.{MEAN}" in figures:
                name, view, domain = named.groups()
                points = found.setdefault(name, {}).setdefault(view, {})
                points.setdefault(domain, []).append((round_of(line, view, done), value))
    return found


def round_of(line: Mapping[str, float], view: str, done: int) -> float:
    """Return the number of training rounds before a measurement.

    A global model is measured at the beginning of a round. A device's own model is measured at the end of the
    round. `done` is the number of all training rounds of the run.
    """
    return line["round"] - 1 if is_global(view) else min(line["round"], done)


def picture(name: str, points: Points) -> str:
    domains = sorted(points.keys() - {MEAN})
    lines = []
    for i, domain in enumerate(domains):
        colour, dash = line_style(i)
        lines.append(ChartLine(domain, points[domain], colour, dash=dash))
    lines.append(ChartLine(MEAN, points[MEAN], INK, bold=True))
    chart = line_chart(lines, three_places, "rounds of training", f"{name} by domain over rounds")
    return f"<h3>{name}</h3>{chart}"


def metrics_table(found: Mapping[str, Mapping[str, Points]], reported: str) -> str:
    """Return a table with a row for each metric and view; a row describes the mean over domains."""
    rows = []
    for name, views in found.items():
        for view, points in sorted(views.items()):
            values = [value for _, value in points[MEAN]]
            ends = [values[0], values[-1], min(values), max(values)]
            shown = view + (" (reported)" if view == reported else "")
            rows.append([name, shown, *map(three_places, ends)])
    heads = ["metric", "model", "start", "last round", "lowest", "highest"]
    return table("Means over domains", heads, rows or [[NONE] * len(heads)])
