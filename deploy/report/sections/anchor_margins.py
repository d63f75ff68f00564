"""The report's section about margins between anchors over rounds, where the method reports these."""

from __future__ import annotations

from typing import Final

from protofleet.deploy.report.drawing.charts import Line, line_chart
from protofleet.deploy.report.drawing.palette import INK, line_style
from protofleet.deploy.report.finished_run import FinishedRun
from protofleet.deploy.report.html_page import section

PREFIX: Final = "margin."
MEAN: Final = "margin.mean"
MOST_NAMED: Final = 12  # classes: more names than that are no help
NOTE: Final = (
    "Distance from each class's anchor to its nearest other anchor: the thick line is their mean, the others are "
    "classes."
)


def anchor_margins_section(run: FinishedRun) -> str:
    found = [(line["round"], line["figures"]) for line in run.rounds if MEAN in line["figures"]]
    if len(found) < 2:
        return ""
    names = sorted({name for _, figures in found for name in figures if name.startswith(PREFIX)} - {MEAN})
    series = []
    for i, name in enumerate(names):
        data, (colour, dash) = [(r, f[name]) for r, f in found if name in f], line_style(i)
        label = f"class {name.removeprefix(PREFIX)}"
        series.append(Line(label, data, colour, labelled=len(names) <= MOST_NAMED, dash=dash))
    series.append(Line("mean", [(r, f[MEAN]) for r, f in found], INK, bold=True))
    values = [value for line in series for _, value in line.points]
    places = 2 if max(values) - min(values) > 0.1 else 4
    picture = line_chart(
        series, lambda v: f"{v:.{places}f}", "round", "margins between anchors over rounds", from_zero=False
    )
    return section("Margins between anchors", picture, note=NOTE)
