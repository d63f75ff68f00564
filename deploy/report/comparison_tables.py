"""A comparison as tables: for the terminal, for GitHub and for the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from protofleet.deploy.report.comparison import Goal, Group, Point
from protofleet.deploy.report.numbers import NONE, human_bytes, percent_points, plain_number
from protofleet.protocol.link.meter import DOWN, UP


@dataclass(frozen=True)
class Table:
    title: str
    note: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def plain(self) -> str:
        widths = [max(map(len, column)) for column in zip(self.head, *self.rows, strict=True)]
        lines = [
            "  ".join(
                c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
            )
            for row in (self.head, *self.rows)
        ]
        return "\n".join([self.title, *lines, self.note]).rstrip()

    def markdown(self) -> str:
        rule = ["---", *("---:" for _ in self.head[1:])]
        lines = ["| " + " | ".join(map(escaped, row)) + " |" for row in (self.head, rule, *self.rows)]
        return "\n".join([f"### {self.title}", "", *lines, "", self.note]).rstrip() + "\n"


def escaped(cell: str) -> str:
    return cell.replace("|", "\\|")


def tables(groups: Sequence[Group], goal: Goal | None, share: float) -> list[Table]:
    return [final_table(groups), best_table(groups), bytes_table(groups, goal, share)]


def final_table(groups: Sequence[Group]) -> Table:
    finals = [group.finals() for group in groups]
    domains = domains_of(finals)
    pooled = [[p for run in g.runs if (p := run.pooled(g.view)) is not None] for g in groups]
    more = ["pooled"] if any(pooled) else []
    rows = [
        [
            group.name, group.method, group.view, str(len(group.runs)),
            *(accuracy(final, name) for name in (*domains, "mean")),
            *(spread(all_over, percent_points) for _ in more),
        ]
        for group, final, all_over in zip(groups, finals, pooled, strict=True)
    ]  # fmt: skip
    note = "With several seeds: mean ± sample standard deviation. mean: of the domains, all with the same weight."
    if more:
        note += " pooled: right answers of all devices over all their test images."
    if not all(run.complete(group.view) for group in groups for run in group.runs):
        note += " A domain that missed a round counts with its last measurement."
    head = ["run", "method", "view", "seeds", *domains, "mean", *more]
    return Table("Accuracy after the last round, %", note, head, rows)


def best_table(groups: Sequence[Group]) -> Table:
    bests = [group.bests() for group in groups]
    domains = domains_of(bests)
    rows = [
        [
            group.name, group.view, spread([point.rounds for point in best], plain_number),
            *(accuracy(best, name) for name in (*domains, "mean")),
        ]
        for group, best in zip(groups, bests, strict=True)
    ]  # fmt: skip
    note = "The round with the highest mean validation accuracy; test images choose nothing."
    head = ["run", "view", "round", *domains, "mean"]
    return Table("Accuracy at the round that validation chooses, %", note, head, rows)


def bytes_table(groups: Sequence[Group], goal: Goal | None, share: float) -> Table:
    rows = []
    for group in groups:
        there = goal.reached(group) if goal else []
        some = f" ({len(there)} of {len(group.runs)})" if 0 < len(there) < len(group.runs) else ""
        rows.append([
            group.name,
            *(spread([run.total("payload", way) for run in group.runs], human_bytes) for way in (UP, DOWN)),
            spread([run.total("wire", UP, DOWN) for run in group.runs], human_bytes),
            spread([point.bytes for point in there], human_bytes) + some,
            spread([point.rounds for point in there], plain_number) + some,
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
        f"To {share:.0%}: until mean test accuracy first reaches {goal.description}; {NONE}: never."
        if goal
        else "There is no baseline: name one with --baseline, or compare with one group that runs fedavg."
    )
    return Table("Bytes of a whole run", note, head, rows)


def domains_of(found: Sequence[Sequence[Point]]) -> list[str]:
    return sorted({name for some in found for point in some for name in point.accuracy} - {"mean"})


def accuracy(found: Sequence[Point], name: str) -> str:
    return spread([point.accuracy[name] for point in found if name in point.accuracy], percent_points)


def spread(values: Sequence[float], fmt: Callable[[float], str]) -> str:
    if not values:
        return NONE
    return fmt(fmean(values)) + (f" ± {fmt(stdev(values))}" if len(values) > 1 else "")
