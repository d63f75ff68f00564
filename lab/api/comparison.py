"""Implement `protofleet.compare`: compare finished runs, as numbers and as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev

from protofleet.lab.api.errors import public_errors
from protofleet.lab.api.results import Bytes, Result
from protofleet.lab.report.compared_energy import energy_tables
from protofleet.lab.report.comparison import (
    REPORTS,
    AccuracyTarget,
    Group,
    accuracy_target,
    read_groups,
    write,
)
from protofleet.lab.report.comparison_csv import as_csv
from protofleet.lab.report.comparison_page import comparison_page
from protofleet.lab.report.comparison_tables import Table, origin_table, tables
from protofleet.lab.report.html_page import table as html_table
from protofleet.lab.report.latex import as_latex
from protofleet.protocol.link.meter import DOWN, UP
from protofleet.runtime.command.errors import RunError


@dataclass(frozen=True)
class Row:
    """The row of one experiment. If the experiment was run with several seeds, the numbers are means over them."""

    name: str
    method: str
    view: str
    seeds: tuple[int, ...]
    accuracy: (
        float  # Accuracy on test samples after the last round. All domains have the same weight in this mean.
    )
    deviation: (
        float | None
    )  # Standard deviation of `accuracy` over the seeds; None if there is only one seed.
    by_domain: Mapping[str, float]
    bytes: Bytes

    @classmethod
    def of(cls, group: Group) -> Row:
        """Return the row for the runs in `group`, which differ only in their seed."""
        points = group.final_points()
        reached = [point.accuracy["mean"] for point in points]
        domains = sorted({name for point in points for name in point.accuracy} - {"mean"})
        by_domain = {
            name: fmean([point.accuracy[name] for point in points if name in point.accuracy])
            for name in domains
        }
        sent = [
            round(fmean([run.total_bytes(kind, *ways) for run in group.runs]))
            for kind, ways in (("payload", (UP,)), ("payload", (DOWN,)), ("wire", (UP, DOWN)))
        ]
        return cls(
            group.name, group.method, group.view, tuple(run.summary["seed"] for run in group.runs),
            fmean(reached) if reached else float("nan"), stdev(reached) if len(reached) > 1 else None,
            by_domain, Bytes(*sent),
        )  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """A comparison of runs.

    `str(comparison)` is the text that `protofleet compare` prints. A notebook shows the same tables.
    """

    groups: Sequence[Group]
    tables: Sequence[Table]
    # The accuracy to reach. The last table shows how many rounds and bytes each experiment needed for this accuracy.
    target: AccuracyTarget | None

    @cached_property
    def rows(self) -> list[Row]:
        """Return a row for each experiment, with means over its seeds."""
        return [Row.of(group) for group in self.groups]

    def __str__(self) -> str:
        return "\n\n".join(table.text() for table in self.tables)

    def __repr__(self) -> str:
        return f"<comparison of {', '.join(row.name for row in self.rows)}>"

    def _repr_html_(self) -> str:
        return "".join(html_table(one.title, one.head, one.rows, one.best) for one in self.tables)

    def to_markdown(self, path: str | Path | None = None) -> str:
        """Return the tables in Markdown, with the origin of each run. If `path` is given, also write them there."""
        return written(path, "\n".join(one.markdown() for one in [*self.tables, origin_table(self.groups)]))

    def to_latex(self, path: str | Path | None = None) -> str:
        r"""Return the tables for a paper that uses \usepackage{booktabs,graphicx}."""
        return written(path, as_latex(self.tables))

    def to_csv(self, path: str | Path | None = None) -> str:
        """Return one line for each run, with all digits."""
        return written(path, as_csv(self.groups, self.target))

    def to_html(self, path: str | Path | None = None) -> str:
        """Return a page with the tables and with curves of accuracy over rounds and over bytes."""
        return written(path, comparison_page(self.groups, self.tables))


def written(path: str | Path | None, text: str) -> str:
    """Return the text. If `path` is given, also write the text to that file."""
    if path is not None:
        with public_errors():
            write(Path(path), text)
    return text


def compare(
    results: Iterable[Result | str | Path], *, view: str = REPORTS, baseline: str = "", share: float = 0.9
) -> Comparison:
    """Compare runs. Each item of `results` is a result of `run` or the folder of a finished run.

    Runs that differ only in their seed share a row.
    """
    if isinstance(results, str | Path | Result):
        results = [results]
    folders = [one.folder if isinstance(one, Result) else Path(one) for one in results]
    with public_errors():
        if not folders:
            raise RunError("there are no runs to compare; name the folders of finished runs")
        groups = read_groups(folders, view)
        target = accuracy_target(groups, baseline, share)
        shown = [*tables(groups, target, share), *energy_tables(groups, target, share)]
    return Comparison(groups, shown, target)
