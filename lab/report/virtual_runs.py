"""Words and tables about virtual runs, whose time, energy and cost `protofleet simulate` has computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from protofleet.lab.report.comparison import Group
from protofleet.lab.report.comparison_tables import Table, mean_and_deviation
from protofleet.lab.report.energy_amounts import human_joules
from protofleet.protocol.link.meter import human_bytes

VIRTUAL: Final = "virtual"
NOTE: Final = "computed by protofleet simulate from profiles; no board and no line was measured"


def is_virtual(summary: Mapping[str, Any]) -> bool:
    return bool(summary.get("profiles"))


def duration(seconds: float) -> str:
    """Write a number of seconds in the largest fitting unit."""
    for size, unit in ((86_400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def money(amount: float) -> str:
    return f"{amount:.2f}" if amount >= 1 else f"{amount:.2g}"


def costs_words(costs: Mapping[str, float]) -> str:
    """Return the costs of a round or of a run as text. Energy and money are left out if the profiles have none."""
    parts = [f"bytes up {human_bytes(costs['bytes_up'])}, down {human_bytes(costs['bytes_down'])}"]
    if "joules" in costs:
        parts.append(human_joules(costs["joules"]))
    if "money" in costs:
        parts.append(f"cost {money(costs['money'])}")
    return ", ".join(parts)


def virtual_words(summary: Mapping[str, Any]) -> list[str]:
    """Return a line about a virtual run; no line for a real one."""
    if not is_virtual(summary):
        return []
    costs = costs_words(summary["virtual"])
    return [f"virtual run: {duration(summary['virtual']['seconds'])}; {costs}; {NOTE}"]


def virtual_notice(summary: Mapping[str, Any]) -> str:
    lines = virtual_words(summary)
    return "".join(f'<p class="danger">{escape(line[0].upper() + line[1:])}.</p>' for line in lines)


def virtual_tables(groups: Sequence[Group]) -> list[Table]:
    """Return a table of the virtual runs; no table if all runs are real."""
    found = [group for group in groups if any(is_virtual(run.summary) for run in group.runs)]
    if not found:
        return []
    head = ["run", "time", "bytes on the lines", "energy", "cost"]
    rows = [[group.name, *cells(group)] for group in found]
    note = f"The time, the bytes, the energy and the cost of these runs are virtual: {NOTE}."
    return [Table("Virtual runs", note, head, rows)]


def cells(group: Group) -> list[str]:
    costs = [run.summary["virtual"] for run in group.runs]
    lines = [one["bytes_up"] + one["bytes_down"] for one in costs]
    return [
        mean_and_deviation([one["seconds"] for one in costs], duration),
        mean_and_deviation(lines, human_bytes),
        mean_and_deviation([one["joules"] for one in costs if "joules" in one], human_joules),
        mean_and_deviation([one["money"] for one in costs if "money" in one], money),
    ]
