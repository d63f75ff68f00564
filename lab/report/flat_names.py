"""Name the numbers of a run. A number has the same name in every tracker and in `compare --csv`.

docs/trackers.md lists the names. A name has several parts with slashes between them. If a user or a method
has chosen a word, for example the name of a domain, this word is one part. A part has only letters, digits,
`_`, `.` and `-`, which every tracker accepts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

MEASURES: Final = ("accuracy", "validation", "loss")
SIZES: Final = ("payload", "wire")
SUM: Final = "sum"

Numbers = dict[str, float]


def part(text: str) -> str:
    """Turn a text into one part of a name. The part is never empty, and never `.` or `..`."""
    found = re.sub(r"[^\w.-]", "_", text)
    return found if found.strip(".") else "_" * max(1, len(found))


def round_numbers(line: Mapping[str, Any]) -> Numbers:
    """Return the numbers in a line of rounds.jsonl. Lines of earlier versions have fewer numbers."""
    found: Numbers = {
        "late": len(line.get("late", ())), "dropped": len(line.get("dropped", ())),
        "participants": len(line.get("participants", ())),
    }  # fmt: skip
    for measure in MEASURES:
        for view, by_domain in line.get(measure, {}).items():
            found |= by_domain_and_mean(f"{measure}/{part(view)}", by_domain)
    found |= named("pooled", line.get("pooled", {}))
    for size in SIZES:
        found |= by_way_and_kind(size, line.get(size, {}))
    found |= named("fedavg", line.get("fedavg", {}))
    found |= named("figures", line.get("figures", {}))
    found |= named("rejected", line.get("rejected", {}))
    found |= named("joules", _sums(line.get("energy", {}).values()))
    return {**found, "seconds": line.get("seconds", 0.0)}


def summary_numbers(summary: Mapping[str, Any]) -> Numbers:
    """Return the numbers of a run's summary.json. The names of accuracies begin with `final` or `best`."""
    found: Numbers = {"total/seconds": summary.get("seconds", 0.0)}
    for size in SIZES:
        found |= by_way_and_kind(f"total/{size}", summary.get(size, {}))
    found |= named("total/joules", summary.get("energy", {}))
    for view, measured in summary.get("views", {}).items():
        found |= named(f"final/accuracy/{part(view)}", measured.get("final", {}))
        if measured.get("pooled") is not None:
            found[f"final/pooled/{part(view)}"] = measured["pooled"]
        found |= named(f"best/accuracy/{part(view)}", _of_domains(measured.get("best_by_validation", {})))
    return found


def by_domain_and_mean(name: str, by_domain: Mapping[str, float]) -> Numbers:
    """Return the values of the domains, and their mean, in which all domains have the same weight."""
    if not by_domain:
        return {}
    return {**named(name, by_domain), f"{name}/mean": sum(by_domain.values()) / len(by_domain)}


def by_way_and_kind(name: str, ways: Mapping[str, Mapping[str, float]]) -> Numbers:
    found: Numbers = {}
    for way, kinds in ways.items():
        found |= {**named(f"{name}/{way}", kinds), f"{name}/{way}/{SUM}": sum(kinds.values())}
    return found


def named(name: str, numbers: Mapping[str, float]) -> Numbers:
    return {f"{name}/{part(key)}": value for key, value in numbers.items()}


def _sums(tables: Iterable[Mapping[str, float]]) -> Numbers:
    found: Numbers = {}
    for table in tables:
        for key, value in table.items():
            found[key] = found.get(key, 0.0) + value
    return found


def _of_domains(best: Mapping[str, float]) -> Mapping[str, float]:
    """Return the accuracies by domain, without the keys that describe the measurement."""
    return {key: value for key, value in best.items() if key not in ("point", "validation_mean")}
