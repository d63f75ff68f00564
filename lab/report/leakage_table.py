"""The table of a comparison with leakage, accuracy and bytes, from the files leakage.json of the runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from protofleet.lab.report.comparison import Group
from protofleet.lab.report.comparison_tables import Table, alike, mean_and_deviation
from protofleet.lab.report.leakage_file import LeakageRow, read_leakage
from protofleet.lab.report.numbers import NONE, percent_points
from protofleet.protocol.link.meter import DOWN, UP, human_bytes

HEAD: Final = ("run", "mean accuracy, %", "tensors", "membership AUC", "attacker", "attack")
NOTE: Final = (
    "The column 'membership AUC' shows the worst device of each run, as `protofleet leakage` has measured it; 0.5 is "
    "chance. Only figures of the same attacker can be compared."
)


def leakage_tables(groups: Sequence[Group]) -> list[Table]:
    """Return the table, or nothing if no run has been measured."""
    measured = [headlines(group) for group in groups]
    if not any(measured):
        return []
    rows = [_row(group, found) for group, found in zip(groups, measured, strict=True)]
    return [Table("What the answers give away", NOTE, HEAD, rows)]


def headlines(group: Group) -> list[LeakageRow]:
    """Return the worst membership figure of each run that has been measured."""
    files = [read_leakage(run.folder) for run in group.runs]
    return [row for one in files if one is not None and (row := one.headline) is not None]


def _row(group: Group, found: Sequence[LeakageRow]) -> list[str]:
    accuracy = [point.accuracy["mean"] for point in group.final_points()]
    sizes = [run.total_bytes("payload", UP, DOWN) for run in group.runs]
    figures = [row.value for row in found if row.value is not None]
    return [
        group.name, mean_and_deviation(accuracy, percent_points), mean_and_deviation(sizes, human_bytes),
        mean_and_deviation(figures, lambda value: f"{value:.3f}"),
        alike(row.attacker for row in found) if found else NONE,
        alike(row.attack for row in found) if found else "not measured",
    ]  # fmt: skip
