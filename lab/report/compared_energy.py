"""Compare runs by accuracy and joules, if their boards can measure joules."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from protofleet.lab.report.comparison import AccuracyTarget, ComparedRun, Group
from protofleet.lab.report.comparison_tables import Table, mean_and_deviation
from protofleet.lab.report.drawing.charts import ChartLine, line_chart
from protofleet.lab.report.energy_amounts import PHASES, human_joules, sums
from protofleet.lab.report.numbers import NONE, percent

# The axis of joules is logarithmic if the ratio of the largest value to the smallest value is above this limit.
LOG_AXIS_RATIO: Final = 30.0


def measured_devices(run: ComparedRun) -> int:
    return len(sums(run.rounds))


def is_measured(group: Group) -> bool:
    """Return whether every run of the group has at least one device that has measured joules."""
    return all(measured_devices(run) for run in group.runs)


def coverage(group: Group) -> str:
    """Write how many devices of the runs have measured joules.

    The joules of two runs can be compared fairly only if all devices have measured them.
    """
    counts = {(measured_devices(run), len(run.summary.get("devices", {}))) for run in group.runs}
    return ", ".join(f"{known} of {count}" for known, count in sorted(counts))


def joules_picture(groups: Sequence[Group], lines: Sequence[ChartLine]) -> str:
    """Draw accuracy over joules. `lines` are the lines of those groups that have joules."""
    if not lines:
        return ""
    sizes = [x for line in lines for x, _ in line.points if x > 0]
    log = bool(sizes) and max(sizes) > LOG_AXIS_RATIO * min(sizes)
    if log:
        lines = [
            ChartLine(
                one.name, [p for p in one.points if p[0] > 0], one.colour, dash=one.dash,
                band=[b for b in one.band if b[0] > 0],
            )
            for one in lines
        ]  # fmt: skip
    axis = "joules of all devices that can measure them" + ("; the axis is logarithmic" if log else "")
    left_out = [group.name for group in groups if not is_measured(group)]
    note = f"Without a power sensor, and not here: {', '.join(left_out)}." if left_out else ""
    chart = line_chart(lines, percent, axis, "mean accuracy over joules", x_format=human_joules, log_x=log)
    return f"<h3>over joules that devices have drawn</h3>{chart}{f'<p>{escape(note)}</p>' if note else ''}"


def energy_tables(groups: Sequence[Group], target: AccuracyTarget | None, share: float) -> list[Table]:
    """Return a list with one table, or an empty list if no run has measured joules."""
    if not any(map(is_measured, groups)):
        return []
    rows = []
    for group in groups:
        if not is_measured(group):
            rows.append([group.name, coverage(group), *([NONE] * 4)])
            continue
        found = [sums(run.rounds) for run in group.runs]
        phases = [[sum(one[phase] for one in run.values()) for run in found] for phase in PHASES]
        reached = target.points_of(group) if target else []
        count = f" ({len(reached)} of {len(group.runs)})" if 0 < len(reached) < len(group.runs) else ""
        rows.append([
            group.name, coverage(group),
            *(mean_and_deviation(values, human_joules) for values in phases),
            mean_and_deviation([sum(pair) for pair in zip(*phases, strict=True)], human_joules),
            mean_and_deviation([point.joules for point in reached], human_joules) + count,
        ])  # fmt: skip
    head = ["run", "devices", "training", "sending and waiting", "together", f"joules to {share:.0%}"]
    note = f"Of the devices that have a power sensor; {NONE}: not known, or never reached."
    return [Table("Joules of a whole run", note, head, rows)]
