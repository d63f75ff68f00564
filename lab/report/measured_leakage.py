"""The measured leakage of each method on the bundled digits.

`measured_leakage.json` has the figures. `python -m tools.pages.leakage_figures` measures them, and writes the tables
in docs/leakage.md from them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protofleet.lab.report.leakage_file import LeakageRow
from protofleet.protocol.settings.reader import decode

PATH: Final = Path(__file__).with_suffix(".json")


@dataclass(frozen=True)
class MeasuredLeakage:
    """The figures of one method."""

    experiment: str
    planned_rounds: int
    date: str
    commit: str
    method: str
    source: str
    attacker: str
    rounds: tuple[int, ...]  # Rounds whose answers were attacked.
    worst: tuple[LeakageRow, ...]
    together: tuple[LeakageRow, ...]
    missing: tuple[LeakageRow, ...]


def read_measured_leakage(path: Path = PATH) -> Mapping[str, MeasuredLeakage]:
    """Return the figures by method."""
    tables = json.loads(path.read_text(encoding="utf-8"))
    return {name: decode(MeasuredLeakage, table, name) for name, table in tables.items()}
