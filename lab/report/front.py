"""Find the runs that no other run beats in both bytes and accuracy; choose one for a budget or an accuracy.

A run is a group of seeds of one experiment. Its accuracy is the mean over the last evaluations, because a single
evaluation differs more between seeds than many codecs do.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Final

from protofleet.lab.report.comparison import ComparedRun, Group
from protofleet.lab.report.comparison_tables import Table
from protofleet.lab.report.drawing.charts import ChartLine, line_chart
from protofleet.lab.report.drawing.palette import line_style
from protofleet.lab.report.html_page import section
from protofleet.lab.report.numbers import NONE, percent, percent_points
from protofleet.protocol.link.meter import human_bytes
from protofleet.runtime.command.errors import RunError

LAST: Final = 4  # Number of evaluations whose mean is the accuracy of a run.
TITLE: Final = "Accuracy over bytes: the front"
NOTE: Final = (
    f"Accuracy is the mean over the last {LAST} evaluations, over domains and seeds; ± is the standard error over "
    "the seeds. Bytes are all tensors of a run, in both directions. A run is on the front if no other run has a "
    "higher accuracy with as few bytes. `protofleet advise` leaves out runs that a budget has stopped."
)
NOT_SET: Final = "not set"
OWN_STAGES: Final = "own stages"
NOT_RECORDED: Final = "not recorded"
CODEC_WORDS: Final = {
    NOT_SET: "without a setting of codec",
    OWN_STAGES: "with codec stages of its own",
    NOT_RECORDED: "with a codec that its folder does not record",
}


@dataclass(frozen=True)
class FrontPoint:
    """A run with its bytes and its accuracy."""

    name: str
    method: str
    codec: str
    bytes: float
    accuracies: tuple[float, ...]  # One for each seed.
    stopped: str = ""  # How early the run has ended; "" if no seed ended before its last round.
    beaten_by: str = ""  # A run with as few bytes and a higher accuracy; "" if there is none.

    @property
    def label(self) -> str:
        return f"{self.name} ({self.stopped})" if self.stopped else self.name

    @property
    def accuracy(self) -> float:
        return fmean(self.accuracies)

    @property
    def error(self) -> float | None:
        """Return the standard error of the accuracy; None if there is only one seed."""
        count = len(self.accuracies)
        return stdev(self.accuracies) / count**0.5 if count > 1 else None

    @property
    def text(self) -> str:
        spread = "" if self.error is None else f" ± {percent_points(self.error)}"
        return f"{percent_points(self.accuracy)}{spread}"


def front_of(groups: Sequence[Group]) -> list[FrontPoint]:
    """Return the runs, those with the fewest bytes first. Each run has the name of a better run, if there is one."""
    found = sorted((_point(group) for group in groups), key=lambda p: (p.bytes, -p.accuracy))
    return [replace(point, beaten_by=_beats(found, place)) for place, point in enumerate(found)]


def _beats(points: Sequence[FrontPoint], place: int) -> str:
    better = [p for p in points[:place] if p.accuracy >= points[place].accuracy]
    return max(better, key=lambda p: p.accuracy).name if better else ""


def _point(group: Group) -> FrontPoint:
    accuracies = [last_accuracy(run, group.view) for run in group.runs]
    spent = fmean(run.total_bytes("payload", "up", "down") for run in group.runs)
    codec, stopped = _codec_of(group.runs[0]), _stopped_of(group.runs)
    return FrontPoint(group.name, group.method, codec, spent, tuple(accuracies), stopped)


def last_accuracy(run: ComparedRun, view: str) -> float:
    """Return the accuracy of a run: the mean over the domains and over its last evaluations."""
    last = run.points_by_all(view)[-LAST:]
    if not last:
        raise RunError(f"{run.folder} has no accuracy of all present devices in the view {view}")
    return fmean(point.accuracy["mean"] for point in last)


def _codec_of(run: ComparedRun) -> str:
    if not (
        run.folder / "experiment.toml"
    ).exists():  # A coordinator without `protofleet run` has made the folder.
        return NOT_RECORDED
    codec = json.loads(run.settings).get("codec", NOT_SET)
    return codec if isinstance(codec, str) else OWN_STAGES


def _stopped_of(runs: Sequence[ComparedRun]) -> str:
    """Return how early the shortest of these runs has ended because of a budget; "" if there is no such run.

    A run that `policy.stop` has ended is whole: it ended because it had learned enough.
    """
    found = [run.summary for run in runs if run.summary.get("stopped_by") == "budget"]
    found = [summary for summary in found if summary["rounds_done"] < summary["rounds"]]
    if not found:
        return ""
    shortest = min(found, key=lambda summary: summary["rounds_done"])
    which = f"{len(found)} of {len(runs)} seeds stopped, one" if len(runs) > 1 else "stopped"
    return f"{which} after {shortest['rounds_done']} of {shortest['rounds']} rounds"


def front_table(points: Sequence[FrontPoint]) -> Table:
    rows = [
        [
            p.label,
            p.method,
            p.codec,
            str(len(p.accuracies)),
            human_bytes(p.bytes),
            p.text,
            p.beaten_by or NONE,
        ]
        for p in points
    ]
    head = ["run", "method", "codec", "seeds", "tensors", "accuracy, %", "beaten by"]
    return Table(TITLE, NOTE, head, rows, frozenset())


def front_picture(points: Sequence[FrontPoint]) -> list[str]:
    """Return the chart of accuracy over bytes, with a line through the runs of the front; return [] without runs."""
    if not points:
        return []
    ahead = [(p.bytes, p.accuracy) for p in points if not p.beaten_by]
    lines = [ChartLine("the front", ahead, line_style(0)[0], bold=True, marked=True)]
    behind = [p for p in points if p.beaten_by]
    lines += [
        ChartLine(p.label, [(p.bytes, p.accuracy)], line_style(place)[0], marked=True)
        for place, p in enumerate(behind, 1)
    ]
    axis = "tensor bytes of a run, up and down; the axis is logarithmic"
    picture = line_chart(
        lines, percent, axis, "accuracy over bytes", from_zero=False, x_format=human_bytes, log_x=True
    )
    return [section("Accuracy over bytes", picture)]


def advice(points: Sequence[FrontPoint], budget: float | None, accuracy: float | None) -> str:
    """Return one sentence that names the best run within a budget, or the run with the fewest bytes for an accuracy.

    Runs that a budget has stopped are left out, and a second sentence names them. Raise RunError if no run fits.
    """
    early = ", ".join(p.label for p in points if p.stopped)
    left_out = f" Left out: {early}." if early else ""
    whole = [p for p in points if not p.stopped]
    if not whole:
        raise RunError(f"each run was stopped early: {early}; name runs that have reached their last round")
    affordable = [p for p in whole if budget is None or p.bytes <= budget]
    fits = [p for p in affordable if accuracy is None or p.accuracy >= accuracy]
    if not fits:
        raise RunError(_why_nothing_fits(whole, affordable, budget, accuracy or 0) + left_out)
    chosen = max(fits, key=lambda p: p.accuracy) if budget is not None else min(fits, key=lambda p: p.bytes)
    codec = CODEC_WORDS.get(chosen.codec, f"with codec {chosen.codec}")
    return (
        f"Use {chosen.method} {codec} ({chosen.name}): {chosen.text} % accuracy with "
        f"{human_bytes(chosen.bytes)} of tensors{_certainty(chosen, fits)}.{left_out}"
    )


def _why_nothing_fits(
    points: Sequence[FrontPoint], affordable: Sequence[FrontPoint], budget: float | None, accuracy: float
) -> str:
    """Return the reason and a way out. Only options that were given are named."""
    if budget is not None and not affordable:
        cheapest = min(points, key=lambda p: p.bytes)
        return (
            f"no run has at most {human_bytes(budget)} of tensors; {cheapest.name} has the fewest, "
            f"{human_bytes(cheapest.bytes)}. Raise --budget."
        )
    best = max(affordable, key=lambda p: p.accuracy)
    within = "" if budget is None else f" with at most {human_bytes(budget)} of tensors"
    helps = any(p.accuracy >= accuracy for p in points)  # A larger budget does.
    return (
        f"no run{within} reaches {percent_points(accuracy)} %; {best.name} has the highest accuracy, "
        f"{percent_points(best.accuracy)} %. {'Raise --budget or lower' if helps else 'Lower'} --accuracy."
    )


def _certainty(chosen: FrontPoint, fits: Sequence[FrontPoint]) -> str:
    """Return a text with the number of seeds and the names of runs that may be as accurate as the chosen run."""
    seeds = len(chosen.accuracies)
    if chosen.error is None:
        return "; one seed says nothing about chance, so repeat the runs with more seeds"
    near = [
        p.name
        for p in fits
        if p is not chosen and p.error is not None
        and abs(p.accuracy - chosen.accuracy) < 2 * (p.error**2 + chosen.error**2) ** 0.5
    ]  # fmt: skip
    if not near:
        return f"; with {seeds} seeds, no other run that fits is within two standard errors"
    names = ", ".join(sorted(near)[:3]) + (" and others" if len(near) > 3 else "")
    return f"; with {seeds} seeds, {names} may be as accurate (within two standard errors)"
