"""Take a measure: run a program of benchmarks/programs with the code of a tree."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness.measure import Figure, MeasureError
from benchmarks.harness.processes import Family
from benchmarks.harness.trees import Tree

LIMIT_SECONDS = 1800.0


@dataclass(frozen=True)
class Program:
    name: str
    what: str
    program: str  # Name of a program in benchmarks/programs.
    # Figures by the names that the program prints. "table: name" is the value `name` in the inner table `table`.
    figures: dict[str, Figure]
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def take(self, tree: Tree, folder: Path) -> dict[str, float]:
        command = tree.command("benchmarks.programs.show", self.program, json.dumps(self.arguments))
        with Family(folder, tree.environment()) as family:
            try:
                said = family.finish(self.program, LIMIT_SECONDS, *command)
            except RuntimeError as error:
                raise MeasureError(str(error)) from None
        found = flat(json.loads(said.splitlines()[-1]))
        if missing := sorted(self.figures.keys() - found.keys()):
            raise MeasureError(
                f"{self.program} did not print {', '.join(missing)}; it printed {sorted(found)}"
            )
        return {name: float(found[name]) for name in self.figures}


def flat(table: Mapping[str, Any], within: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        path = f"{within}: {key}" if within else key
        found |= flat(value, path) if isinstance(value, dict) else {path: value}
    return found
