"""A comparison as tables: for the terminal, for GitHub and for the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any

from protofleet.deploy.report.comparison import AccuracyTarget, Group, Point
from protofleet.deploy.report.numbers import NONE, percent_points, plain_number
from protofleet.protocol.link.meter import DOWN, UP, human_bytes


@dataclass(frozen=True)
class Table:
    title: str
    note: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def text(self) -> str:
        widths = [max(map(len, column)) for column in zip(self.head, *self.rows, strict=True)]
        lines = [
            "  ".join(
                c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
            )
            for row in (self.head, *self.rows)
        ]
        return "\n".join([self.title, *lines, self.note]).rstrip()

    def as_object(self) -> dict[str, Any]:
        rows = [dict(zip(self.head, row, strict=True)) for row in self.rows]
        return {"title": self.title, "note": self.note, "rows": rows}

    def markdown(self) -> str:
        rule = ["---", *("---:" for _ in self.head[1:])]
        lines = ["| " + " | ".join(map(escaped, row)) + " |" for row in (self.head, rule, *self.rows)]
        return "\n".join([f"### {self.title}", "", *lines, "", self.note]).rstrip() + "\n"


def escaped(cell: str) -> str:
    return cell.replace("|", "\\|")


def tables(groups: Sequence[Group], target: AccuracyTarget | None, share: float) -> list[Table]:
    return [final_table(groups), best_table(groups), bytes_table(groups, target, share)]


def as_object(groups: Sequence[Group], shown: Sequence[Table]) -> dict[str, Any]:
    """For programs: the tables as they are shown, and a number for each of a row's seeds."""
    rows = [
        {
            "name": group.name, "method": group.method, "view": group.view,
            "seeds": [run.summary["seed"] for run in group.runs],
            "final": [asdict(point) for point in group.final_points()],
            "best_by_validation": [asdict(point) for point in group.best_points()],
            "bytes": [
                {"up": run.total_bytes("payload", UP), "down": run.total_bytes("payload", DOWN),
                 "wire": run.total_bytes("wire", UP, DOWN)} for run in group.runs
            ],
        }
        for group in groups
    ]  # fmt: skip
    return {"rows": rows, "tables": [table.as_object() for table in shown]}


def final_table(groups: Sequence[Group]) -> Table:
    final_points = [group.final_points() for group in groups]
    domains = domains_of(final_points)
    pooled = [[p for run in g.runs if (p := run.pooled(g.view)) is not None] for g in groups]
    pooled_head = ["pooled"] if any(pooled) else []
    rows = [
        [
            group.name, group.method, group.view, str(len(group.runs)),
            *(accuracy(final, name) for name in (*domains, "mean")),
            *(mean_and_deviation(values, percent_points) for _ in pooled_head),
        ]
        for group, final, values in zip(groups, final_points, pooled, strict=True)
    ]  # fmt: skip
    note = "With several seeds: mean ± sample standard deviation. mean: of the domains, all with the same weight."
    if pooled_head:
        note += " pooled: right answers of all devices over all their test images."
    if not all(run.is_complete(group.view) for group in groups for run in group.runs):
        note += " A domain that missed a round counts with its last measurement."
    head = ["run", "method", "view", "seeds", *domains, "mean", *pooled_head]
    return Table("Accuracy after the last round, %", note, head, rows)


def best_table(groups: Sequence[Group]) -> Table:
    best_points = [group.best_points() for group in groups]
    domains = domains_of(best_points)
    rows = [
        [
            group.name, group.view, mean_and_deviation([point.rounds for point in best], plain_number),
            *(accuracy(best, name) for name in (*domains, "mean")),
        ]
        for group, best in zip(groups, best_points, strict=True)
    ]  # fmt: skip
    note = (
        "The round with the highest mean validation accuracy; test images choose nothing. Of devices' own models the "
        "last evaluation is left out: it may measure another model than rounds do."
    )
    head = ["run", "view", "round", *domains, "mean"]
    return Table("Accuracy at the round that validation chooses, %", note, head, rows)


def bytes_table(groups: Sequence[Group], target: AccuracyTarget | None, share: float) -> Table:
    rows = []
    for group in groups:
        reached = target.points_of(group) if target else []
        count = f" ({len(reached)} of {len(group.runs)})" if 0 < len(reached) < len(group.runs) else ""
        rows.append([
            group.name,
            *(
                mean_and_deviation([run.total_bytes("payload", direction) for run in group.runs], human_bytes)
                for direction in (UP, DOWN)
            ),
            mean_and_deviation([run.total_bytes("wire", UP, DOWN) for run in group.runs], human_bytes),
            mean_and_deviation([point.bytes for point in reached], human_bytes) + count,
            mean_and_deviation([point.rounds for point in reached], plain_number) + count,
        ])  # fmt: skip
    head = [
        "run",
        "tensors up",
        "tensors down",
        "on the wire",
        f"tensors to {share:.0%}",
        f"rounds to {share:.0%}",
    ]
    note = (
        f"To {share:.0%}: until mean test accuracy first reaches {target.description}; {NONE}: never."
        if target
        else "There is no baseline: name one with --baseline, or compare with one group that runs fedavg."
    )
    return Table("Bytes of a whole run", note, head, rows)


def domains_of(groups: Sequence[Sequence[Point]]) -> list[str]:
    return sorted({name for points in groups for point in points for name in point.accuracy} - {"mean"})


def accuracy(points: Sequence[Point], name: str) -> str:
    return mean_and_deviation(
        [point.accuracy[name] for point in points if name in point.accuracy], percent_points
    )


def mean_and_deviation(values: Sequence[float], format_value: Callable[[float], str]) -> str:
    if not values:
        return NONE
    return format_value(fmean(values)) + (f" ± {format_value(stdev(values))}" if len(values) > 1 else "")
