"""The history of figures: a JSON line for each run of a measure. Lines are only added and never changed."""

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
DIGITS = 4  # Number of significant digits that are stored.

Series = dict[str, list[float]]  # The values of each figure, by the figure's name.


@dataclass(frozen=True, slots=True)
class Entry:
    """The values of one measure.

    If `other` is not empty, value i of the other tree and value i of this tree were measured one after the
    other.
    """

    measure: str
    date: str
    commit: str
    machine: dict[str, str | int]
    # Load of the machine before and after the measure: the mean number of processes that wanted a core.
    load: list[float]
    this: Series
    against: str = ""  # Commit of the other tree; "" if there is none.
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
    """Return the entries in the order in which they were measured.

    If a line is not an entry, a ValueError is raised.
    """
    if not file.exists():
        return []
    found = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            found.append(Entry(**json.loads(line)))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{file}, line {number} is not an entry of the history: {error}") from None
    return found


def last(entries: Sequence[Entry], measure: str) -> Entry | None:
    return next((e for e in reversed(entries) if e.measure == measure), None)
