"""Make the tables of a comparison, for the terminal, for GitHub and for the page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any

from protofleet.lab.report.comparison import AccuracyTarget, Group, MeasuredPoint, candidates
from protofleet.lab.report.numbers import NONE, one_place, percent_points, plain_number
from protofleet.protocol.link.meter import DOWN, UP, human_bytes

SEEDS_NOTE = (
    "Cells of several seeds show mean ± sample standard deviation, or only the mean if all values are equal."
)

# A deviation that is smaller than this share of the mean is not shown, for example 2 bytes in 10 million bytes.
NO_SPREAD = 1e-6


@dataclass(frozen=True)
class Table:
    title: str
    note: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    # The row and the column of each cell that holds the best value of a column.
    best: frozenset[tuple[int, int]] = frozenset()

    @property
    def legend(self) -> str:
        """Return the note below the table, with the meaning of bold numbers.

        Two views measure different models, so each view has its own best value.
        """
        alike = " of each view" if "view" in self.head else ""
        return (
            f"{self.note} In each column, bold marks the best value{alike}.".lstrip()
            if self.best
            else self.note
        )

    @property
    def words(self) -> frozenset[int]:
        """Return the columns that are aligned to the left, because they contain words: names, methods, views."""
        return columns_of_words(self.rows)

    def text(self) -> str:
        widths = [max(map(len, column)) for column in zip(self.head, *self.rows, strict=True)]
        lines = [
            "  ".join(
                c.ljust(w) if i in self.words else c.rjust(w)
                for i, (c, w) in enumerate(zip(row, widths, strict=True))
            )
            for row in (self.head, *self.rows)
        ]
        return "\n".join([self.title, *lines, self.note]).rstrip()

    def as_object(self) -> dict[str, Any]:
        rows = [dict(zip(self.head, row, strict=True)) for row in self.rows]
        return {"title": self.title, "note": self.note, "rows": rows}

    def markdown(self) -> str:
        rule = ["---" if i in self.words else "---:" for i in range(len(self.head))]
        rows = [
            [f"**{c}**" if (i, j) in self.best else c for j, c in enumerate(map(escaped, row))]
            for i, row in enumerate(self.rows)
        ]
        lines = ["| " + " | ".join(row) + " |" for row in (map(escaped, self.head), rule, *rows)]
        return "\n".join([f"### {self.title}", "", *lines, "", self.legend]).rstrip() + "\n"


def columns_of_words(rows: Sequence[Sequence[str]]) -> frozenset[int]:
    """Return the columns of words: the first column, and columns in which a cell begins with a letter."""
    return frozenset({0, *(i for row in rows for i, cell in enumerate(row) if cell[:1].isalpha())})


def escaped(cell: str) -> str:
    return cell.replace("|", "\\|")


def tables(groups: Sequence[Group], target: AccuracyTarget | None, share: float) -> list[Table]:
    return [final_table(groups), best_table(groups), bytes_table(groups, target, share)]


def as_object(groups: Sequence[Group], shown: Sequence[Table]) -> dict[str, Any]:
    """Return the comparison as JSON for programs: the tables that are shown, and the numbers of each seed."""
    rows = [
        {
            "name": group.name, "method": group.method, "view": group.view,
            "seeds": [run.summary["seed"] for run in group.runs],
            "experiment": [run.summary.get("experiment", "") for run in group.runs],
            "versions": [run.summary.get("versions", {}) for run in group.runs],
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


def origin_table(groups: Sequence[Group]) -> Table:
    """Return the table with the software and the settings of each row, which are needed to repeat a run."""
    rows = [
        [
            group.name,
            *(
                alike(run.summary.get("versions", {}).get(key) for run in group.runs)
                for key in ("commit", "sources")
            ),
            alike(run.summary.get("experiment") for run in group.runs),
            *(
                alike(run.summary.get("versions", {}).get(key) for run in group.runs)
                for key in ("torch", "machine")
            ),
        ]
        for group in groups
    ]
    note = (
        "A plus sign after a commit means that files of the checkout were changed. The column 'sources' shows a "
        "digest of the code that decides results. The column 'experiment' shows a digest of the resolved settings "
        "without the seed."
    )
    head = ["run", "commit", "sources", "experiment", "torch", "machine of the coordinator"]
    return Table("Where the figures come from", note, head, rows)


def alike(values: Iterable[object]) -> str:
    """Join the different values that the runs of a row have. A run of an earlier version may have no value."""
    return ", ".join(sorted({str(value) if value else "not recorded" for value in values}))


def final_table(groups: Sequence[Group]) -> Table:
    final_points = [group.final_points() for group in groups]
    domains = domains_of(final_points)
    pooled = [[p for run in g.runs if (p := run.pooled(g.view)) is not None] for g in groups]
    pooled_head = ["pooled"] if any(pooled) else []
    measured = [
        [*(accuracies(final, name) for name in (*domains, "mean")), *([values] if pooled_head else [])]
        for final, values in zip(final_points, pooled, strict=True)
    ]
    rows = [
        [g.name, g.method, g.view, str(len(g.runs)), *(mean_and_deviation(v, percent_points) for v in values)]
        for g, values in zip(groups, measured, strict=True)
    ]
    note = f"{SEEDS_NOTE} In the column 'mean', all domains count equally."
    if pooled_head:
        note += " In the column 'pooled', all test samples count equally."
    if any(not point.by_all for g in groups for run in g.runs for point in run.points(g.view)):
        note += " Where rounds leave devices out, only measurements by all present devices count."
    if not all(run.is_complete(group.view) for group in groups for run in group.runs):
        note += " A domain that missed a round counts with its last measurement."
    head = ["run", "method", "view", "seeds", *domains, "mean", *pooled_head]
    return Table(
        "Accuracy after the last round, %",
        note,
        head,
        rows,
        best_cells(measured, 4, percent_points, among=[g.view for g in groups]),
    )


def best_table(groups: Sequence[Group]) -> Table:
    best_points = [group.best_points() for group in groups]
    domains = domains_of(best_points)
    measured = [[accuracies(best, name) for name in (*domains, "mean")] for best in best_points]
    rows = [
        [
            group.name, group.view, mean_and_deviation([point.rounds for point in best], plain_number),
            *(mean_and_deviation(v, percent_points) for v in values),
        ]
        for group, best, values in zip(groups, best_points, measured, strict=True)
    ]  # fmt: skip
    note = (
        "The column 'round' shows the round with the highest mean validation accuracy; test samples have no "
        "influence on this choice. The last evaluation of devices' own models does not count, because it may measure "
        "models that no round has measured."
    )
    head = ["run", "view", "round", *domains, "mean"]
    bold = best_cells(measured, 3, percent_points, among=[g.view for g in groups])
    return Table("Accuracy at the round that validation chooses, %", note, head, rows, bold)


def bytes_table(groups: Sequence[Group], target: AccuracyTarget | None, share: float) -> Table:
    rows, sizes, rounds = [], [], []
    for group in groups:
        reached = target.points_of(group) if target else []
        count = f" ({len(reached)} of {len(group.runs)})" if 0 < len(reached) < len(group.runs) else ""
        sent = [[run.total_bytes("payload", way) for run in group.runs] for way in (UP, DOWN)]
        sent += [[run.total_bytes("wire", UP, DOWN) for run in group.runs]]
        to_target, numbers = [point.bytes for point in reached], [point.rounds for point in reached]
        rows.append([
            group.name, *(mean_and_deviation(values, human_bytes) for values in sent),
            mean_and_deviation(to_target, human_bytes) + count, mean_and_deviation(numbers, plain_number) + count,
        ])  # fmt: skip
        # If only some seeds reach the target, the mean over these seeds must not count as the best value.
        sizes.append([*sent, [] if count else to_target])
        rounds.append([[] if count else numbers])
    factors = [[f for run in group.runs if (f := run.codec_factor()) is not None] for group in groups]
    if any(factors):
        rows = [[*row, mean_and_deviation(f, one_place)] for row, f in zip(rows, factors, strict=True)]
    head = [
        "run",
        "tensors up",
        "tensors down",
        "on the wire",
        f"tensors to {share:.0%}",
        f"rounds to {share:.0%}",
        *(["codec factor"] if any(factors) else []),
    ]
    note = (
        f"The columns 'to {share:.0%}' count bytes and rounds until the mean test accuracy first reaches "
        f"{target.description}. "
        f"The sign {NONE} means that the run never reached this accuracy."
        if target
        else no_baseline(groups)
    )
    if any(factors):
        note += " The column 'codec factor' shows the bytes of the tensors before the codec, divided by those after."
    bold = best_cells(sizes, 1, human_bytes, highest=False)
    bold |= best_cells(rounds, 5, plain_number, highest=False)
    return Table("Bytes of a whole run", note, head, rows, bold)


def no_baseline(groups: Sequence[Group]) -> str:
    names = [group.name for group in candidates(groups)]
    if len(names) > 1:
        return f"There is no baseline: {len(names)} groups run fedavg, {', '.join(names)}; name one with --baseline."
    return "There is no baseline: name one with --baseline, or compare with one group that runs fedavg."


def best_cells(
    measured: Sequence[Sequence[Sequence[float]]], first: int, format_value: Callable[[float], str],
    highest: bool = True, among: Sequence[str] = (),
) -> frozenset[tuple[int, int]]:  # fmt: skip
    """Return the row and the column of each cell that has the best mean of its column.

    `first` is the number of the first column of `measured` in the whole table.

    Two means are equal if they are shown as the same text. If all means of a column are equal, the column has no
    best cell. `among` names the group of each row, for example the measured view. Only rows of one group are
    compared.

    If the lowest mean is the best, a mean of 0 is left out. For example, a run that sends no bytes is not a
    federation.
    """
    kinds = among or [""] * len(measured)
    found: set[tuple[int, int]] = set()
    for j, column in enumerate(zip(*measured, strict=True)):
        for kind in set(kinds):
            means = {i: fmean(values) for i, values in enumerate(column) if values and kinds[i] == kind}
            means = {i: mean for i, mean in means.items() if highest or mean > 0}
            found |= {(i, first + j) for i in _best_of(means, format_value, highest)}
    return frozenset(found)


def _best_of(means: Mapping[int, float], format_value: Callable[[float], str], highest: bool) -> set[int]:
    if not means:
        return set()
    best = format_value(max(means.values()) if highest else min(means.values()))
    found = {i for i, mean in means.items() if format_value(mean) == best}
    return found if len(found) < len(means) else set()


def domains_of(groups: Sequence[Sequence[MeasuredPoint]]) -> list[str]:
    return sorted({name for points in groups for point in points for name in point.accuracy} - {"mean"})


def accuracies(points: Sequence[MeasuredPoint], name: str) -> list[float]:
    return [point.accuracy[name] for point in points if name in point.accuracy]


def mean_and_deviation(values: Sequence[float], format_value: Callable[[float], str]) -> str:
    """Write the mean, and also the deviation if the deviation is large enough to be shown."""
    if not values:
        return NONE
    mean, deviation = fmean(values), stdev(values) if len(values) > 1 else 0.0
    return format_value(mean) + (f" ± {format_value(deviation)}" if deviation > NO_SPREAD * abs(mean) else "")
