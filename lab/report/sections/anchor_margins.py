"""Make the section about the margins between anchors in each round, if the method reports these margins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from protofleet.lab.report.drawing.charts import ChartLine, line_chart
from protofleet.lab.report.drawing.palette import INK, line_style
from protofleet.lab.report.finished_run import FinishedRun
from protofleet.lab.report.html_page import section

PREFIX: Final = "margin."
MEAN: Final = "margin.mean"
MOST_NAMED: Final = 12  # Maximum number of classes that the picture names.
NOTE: Final = (
    "Distance from each class's anchor to its nearest other anchor: the thick line is their mean, the others are "
    "classes."
)


def anchor_margins_section(run: FinishedRun) -> str:
    found = [(line["round"], line["figures"]) for line in run.rounds if MEAN in line["figures"]]
    if len(found) < 2:
        return ""
    labels, series = labels_in(figures for _, figures in found), []
    for i, label in enumerate(labels):
        name, (colour, dash) = f"{PREFIX}{label}", line_style(i)
        data = [(r, f[name]) for r, f in found if name in f]
        words = class_words(label, run.summary.get("class_names") or [])
        series.append(ChartLine(words, data, colour, labelled=len(labels) <= MOST_NAMED, dash=dash))
    series.append(ChartLine("mean", [(r, f[MEAN]) for r, f in found], INK, bold=True))
    values = [value for line in series for _, value in line.points]
    places = 2 if max(values) - min(values) > 0.1 else 4
    picture = line_chart(
        series, lambda v: f"{v:.{places}f}", "round", "margins between anchors over rounds", from_zero=False
    )
    return section("Margins between anchors", picture, note=NOTE)


def labels_in(figures: Iterable[Mapping[str, float]]) -> list[str]:
    """Return the labels of classes in their order.

    The labels of a user's own method need not be numbers.
    """
    found = {name.removeprefix(PREFIX) for one in figures for name in one if name.startswith(PREFIX)}
    numbers = sorted((label for label in found if label.isdecimal()), key=int)
    return [*numbers, *sorted(found - {*numbers, MEAN.removeprefix(PREFIX)})]


def class_words(label: str, names: Sequence[str]) -> str:
    name = names[int(label)] if label.isdecimal() and int(label) < len(names) else label
    return f"class {name}" if name.isdecimal() else name
