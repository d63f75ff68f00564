"""The report's sections about what was measured: accuracy and loss by domain, over rounds and at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from protofleet.coordinator.observe.curves import curve
from protofleet.deploy.report.drawing.charts import Line, line_chart
from protofleet.deploy.report.drawing.palette import INK, line_style
from protofleet.deploy.report.finished_run import FinishedRun
from protofleet.deploy.report.html_page import section, table
from protofleet.deploy.report.numbers import NONE, percent, three_places

VIEWS: Final = {
    "global": "the global model, on every domain's own test samples",
    "personal": "each device's own model, on its own domain's test samples",
}
VIEWS_NOTE: Final = "A word after global or personal is another way to predict with that model."
ROUNDS_NOTE: Final = "The point at r is the model after r rounds."


def accuracy_section(run: FinishedRun) -> str:
    series = domain_lines(run, "accuracy")
    if not series:
        return ""
    picture = line_chart(series, percent, "rounds of training", "accuracy by domain over rounds")
    note = f"Shown: {VIEWS[run.summary['reports']]}. {ROUNDS_NOTE}"
    return section(
        "Accuracy by domain", picture, accuracy_table(run.summary), views_table(run.summary), note=note
    )


def loss_section(run: FinishedRun) -> str:
    series = domain_lines(run, "loss")
    if not series:
        return ""
    picture = line_chart(series, three_places, "rounds of training", "loss by domain over rounds")
    note = f"Mean cross-entropy over the test samples of {VIEWS[run.summary['reports']].partition(',')[0]}."
    return section("Loss by domain", picture, loss_table(series), note=f"{note} {ROUNDS_NOTE}")


def domain_lines(run: FinishedRun, measure: str) -> list[Line]:
    """A line for each domain, and a bold one for their mean."""
    view = run.summary["reports"]
    points = curve(run.rounds, view, measure)
    if not points:
        return []
    first = 0 if view == "global" else 1
    series = []
    for i, domain in enumerate(sorted(points[-1])):
        colour, dash = line_style(i)
        data = [(first + r, p[domain]) for r, p in enumerate(points) if domain in p]
        series.append(Line(domain, data, colour, dash=dash))
    means = [(first + r, sum(p.values()) / len(p)) for r, p in enumerate(points)]
    return [*series, Line("mean", means, INK, bold=True)]


def accuracy_table(summary: Mapping[str, Any]) -> str:
    accuracy = summary["accuracy"]
    start, final, best = accuracy["start"], accuracy["final"], accuracy["best_by_validation"]
    rows = [
        [name, percent(start.get(name)), percent(final.get(name)), percent(best.get(name))]
        for name in [*sorted(n for n in final if n != "mean"), "mean"]
    ]
    point = f"best by validation (point {best['point']})" if "point" in best else "best by validation"
    return table("Accuracy on test samples", ["domain", "start", "last round", point], rows)


def views_table(summary: Mapping[str, Any]) -> str:
    """Where more views were measured than the one that the paper reports."""
    views = summary.get("views", {})
    if len(views) < 2:
        return ""
    rows = [
        [
            view + (" (reported)" if view == summary["reports"] else ""), percent(found["final"].get("mean")),
            percent(found["best_by_validation"].get("mean")),
        ]
        for view, found in sorted(views.items())
    ]  # fmt: skip
    html = table("Mean accuracy by view", ["view", "last round, mean", "best by validation"], rows)
    return f"<h3>by all views</h3>{html}<p>{VIEWS_NOTE}</p>"


def loss_table(series: list[Line]) -> str:
    rows = [
        [line.name, three_places(ys[0]), three_places(ys[-1]), three_places(min(ys))]
        for line in series
        if (ys := [y for _, y in line.points])
    ]
    return table("Loss on test samples", ["domain", "start", "last round", "lowest"], rows or [[NONE] * 4])
