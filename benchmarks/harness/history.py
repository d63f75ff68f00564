"""The history of figures: a JSON line for each time that a measure was taken; lines are only ever added."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from benchmarks.harness.trees import ROOT

FILE = ROOT / "benchmarks" / "results" / "history.jsonl"
DIGITS = 4  # Number of digits that are kept.

Series = dict[str, list[float]]  # The values of each figure, by its name.


@dataclass(frozen=True, slots=True)
class Entry:
    """The values of one measure.

    If there is `other`, its i-th value and this tree's i-th value were taken one after the other.
    """

    measure: str
    date: str
    commit: str
    machine: dict[str, str | int]
    load: list[float]  # Load of the machine before and after: the number of processes that wanted a core.
    this: Series
    against: str = ""  # Commit of the other tree.
    other: Series = field(default_factory=dict)


def entry(
    measure: str,
    commit: str,
    load: Sequence[float],
    this: Series,
    against: str = "",
    other: Series | None = None,
) -> Entry:
    today = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    return Entry(
        measure, today, commit, machine(), short(load), shortened(this), against, shortened(other or {})
    )


def machine() -> dict[str, str | int]:
    return {
        "cores": os.cpu_count() or 0,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def shortened(series: Mapping[str, Sequence[float]]) -> Series:
    return {name: short(values) for name, values in series.items()}


def short(values: Sequence[float]) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in values]


def append(entry: Entry, file: Path = FILE) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(asdict(entry), separators=(",", ":")) + "\n")


def read(file: Path = FILE) -> list[Entry]:
    """Return the entries in the order in which they were taken.

    Raise ValueError if a line is not an entry.
    """
    if not file.exists():
        return []
    found = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            found.append(Entry(**json.loads(line)))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{file}, line {number} is no entry of the history: {error}") from None
    return found


def last(entries: Sequence[Entry], measure: str) -> Entry | None:
    return next((e for e in reversed(entries) if e.measure == measure), None)
