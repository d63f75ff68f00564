"""Write a comparison for spreadsheets and data frames, with one line for each run."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any, Final

from protofleet.coordinator.observe.curves import rounds_done
from protofleet.lab.report.comparison import AccuracyTarget, ComparedRun, Group, best_by_validation
from protofleet.lab.report.flat_names import Numbers, by_way_and_kind, named, part
from protofleet.lab.report.leakage_file import read_leakage

OF_A_RUN: Final = (
    "experiment", "run", "folder", "method", "view", "network", "seed", "rounds", "rounds_done",
)  # fmt: skip
TARGET: Final = "to_target"


def as_csv(groups: Sequence[Group], target: AccuracyTarget | None) -> str:
    """Return the numbers of the tables as CSV, with all digits and one line for each run.

    If a run lacks a number, its cell is empty.
    """
    rows = [(of_a_run(group, run), numbers_of(group, run, target)) for group in groups for run in group.runs]
    names = list(dict.fromkeys(name for _, numbers in rows for name in numbers))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*OF_A_RUN, *names])
    for about, numbers in rows:
        writer.writerow([*about, *(numbers.get(name, "") for name in names)])
    return text.getvalue()


def of_a_run(group: Group, run: ComparedRun) -> list[Any]:
    about = run.summary
    return [
        group.name, about["name"], str(run.folder), about["method"], group.view, about.get("network", ""),
        about["seed"], about["rounds"], rounds_done(run.rounds),
    ]  # fmt: skip


def numbers_of(group: Group, run: ComparedRun, target: AccuracyTarget | None) -> Numbers:
    """Return the numbers of a run for the group's view. The names of the numbers are the same as in trackers."""
    view, points = part(group.view), run.points(group.view)
    found: Numbers = {}
    if points:
        found |= named(f"final/accuracy/{view}", points[-1].accuracy)
    if (pooled := run.pooled(group.view)) is not None:
        found[f"final/pooled/{view}"] = pooled
    if best := best_by_validation(points, group.view):
        found |= {f"best/round/{view}": best.rounds, **named(f"best/accuracy/{view}", best.accuracy)}
    for size in ("payload", "wire"):
        found |= by_way_and_kind(f"total/{size}", run.summary.get(size, {}))
    if "seconds" in run.summary:
        found["total/seconds"] = run.summary["seconds"]
    found |= named("total/joules", run.summary.get("energy", {}))
    if (leakage := read_leakage(run.folder)) and leakage.headline and leakage.headline.value is not None:
        found[f"leakage/membership_auc/{leakage.headline.attacker}"] = leakage.headline.value
    if target and (reached := target.first_point(run, group.view)):
        found |= {f"{TARGET}/bytes": reached.bytes, f"{TARGET}/rounds": reached.rounds}
        found |= {f"{TARGET}/joules": reached.joules} if run.summary.get("energy") else {}
    return found
