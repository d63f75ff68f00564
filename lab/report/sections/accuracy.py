"""Make the sections about the accuracy and the loss of each domain, over the rounds and at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from protofleet.coordinator.observe.curves import Measurement, measurements
from protofleet.lab.report.drawing.charts import ChartLine, line_chart
from protofleet.lab.report.drawing.palette import INK, line_style
from protofleet.lab.report.finished_run import FinishedRun
from protofleet.lab.report.html_page import section, table
from protofleet.lab.report.numbers import NONE, percent, three_places

VIEWS: Final = {
    "global": "the global model, on every domain's own test samples",
    "personal": "each device's own model, on its own domain's test samples",
}
ALL_PRESENT: Final = "all present devices"
SAMPLED_NOTE: Final = (
    "Some rounds asked only a sampled cohort. The lines by domain go through the points that all present devices "
    "measured; the dots are the mean over the sampled cohort of their round: other devices each time."
)
VIEWS_NOTE: Final = "A word after global or personal is another way to predict with that model."
ROUNDS_NOTE: Final = "The point at r is the model after r rounds."


def accuracy_section(run: FinishedRun) -> str:
    series = domain_lines(run, "accuracy")
    if not series:
        return ""
    picture = line_chart(series, percent, "rounds of training", "accuracy by domain over rounds")
    points = measurements(run.rounds, run.summary["reports"])
    note = f"Shown: {VIEWS[run.summary['reports']]}. {ROUNDS_NOTE}"
    note += f" {SAMPLED_NOTE}" if any(not point.by_all for point in points) else ""
    tables = accuracy_table(run.summary), views_table(run.summary), measured_by_table(points)
    return section("Accuracy by domain", picture, *tables, note=note)


def loss_section(run: FinishedRun) -> str:
    series = domain_lines(run, "loss")
    if not series:
        return ""
    picture = line_chart(series, three_places, "rounds of training", "loss by domain over rounds")
    note = f"Mean cross-entropy over the test samples of {VIEWS[run.summary['reports']].partition(',')[0]}."
    return section("Loss by domain", picture, loss_table(series), note=f"{note} {ROUNDS_NOTE}")


def domain_lines(run: FinishedRun, measure: str) -> list[ChartLine]:
    """Return a line for each domain and a bold line for their mean.

    These lines show only rounds in which all present devices had to measure. If sampled cohorts have also measured,
    one more line shows the means of the sampled cohorts.
    """
    points = [p for p in measurements(run.rounds, run.summary["reports"]) if p.of(measure)]
    by_all, sampled = [p for p in points if p.by_all], [p for p in points if not p.by_all]
    if not by_all:
        return []
    series = []
    for i, domain in enumerate(sorted(by_all[-1].of(measure))):
        colour, dash = line_style(i)
        data = [(p.rounds, p.of(measure)[domain]) for p in by_all if domain in p.of(measure)]
        series.append(ChartLine(domain, data, colour, dash=dash))
    series.append(ChartLine("mean", means_of(by_all, measure), INK, bold=True))
    if sampled:
        series.append(
            ChartLine("mean of sampled cohorts", means_of(sampled, measure), INK, dash="1 5", marked=True)
        )
    return series


def means_of(points: Sequence[Measurement], measure: str) -> list[tuple[float, float]]:
    return [(p.rounds, sum(p.of(measure).values()) / len(p.of(measure))) for p in points]


def measured_by_table(points: Sequence[Measurement]) -> str:
    """Make a table that shows which devices measured the points.

    Consecutive points share a row if the same number of devices measured them.
    """
    rows = []
    for words, group in groupby(points, key=measured_by):
        numbers = [point.rounds for point in group]
        spans = str(numbers[0]) if numbers[0] == numbers[-1] else f"{numbers[0]} to {numbers[-1]}"
        rows.append([spans, words])
    return table("Who measured each point", ["after round", "measured by"], rows, words=True)


def measured_by(point: Measurement) -> str:
    if not point.by_all:
        return f"a sampled cohort: {point.devices} of {point.present} present devices"
    missing = point.present - point.devices
    return f"{ALL_PRESENT}: {point.devices}" + (
        f" of {point.present}, the others did not answer" if missing > 0 else ""
    )


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
    """Return a table of all views, or "" if the run measured only one view."""
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


def loss_table(series: list[ChartLine]) -> str:
    rows = [
        [line.name, three_places(ys[0]), three_places(ys[-1]), three_places(min(ys))]
        for line in series
        if (ys := [y for _, y in line.points])
    ]
    return table("Loss on test samples", ["domain", "start", "last round", "lowest"], rows or [[NONE] * 4])
