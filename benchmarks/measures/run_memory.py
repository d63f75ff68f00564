"""Measure the memory of all processes of `protofleet run`, from start to end.

One figure is the highest sample. The other figure is the median of the samples during the rounds.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from benchmarks.harness.measure import Figure, MeasureError
from benchmarks.harness.processes import Family
from benchmarks.harness.trees import Tree
from benchmarks.measures.run import LIMIT_SECONDS, Run

# Seconds between two samples. The training of a device takes more time, so each training is sampled.
PAUSE_SECONDS = 0.05


@dataclass(frozen=True)
class RunMemory:
    run: Run
    figures: ClassVar = {
        "memory of all at most": Figure("MB", steady=True),
        "memory of all, median through the rounds": Figure("MB", steady=True),
    }

    @property
    def name(self) -> str:
        return f"{self.run.name}-memory"

    @property
    def what(self) -> str:
        return f"memory (PSS) of all processes, sampled during the whole run: {self.run.what}"

    def take(self, tree: Tree, folder: Path) -> dict[str, float]:
        with Family(folder, tree.environment()) as family:
            lines = self.run.start(tree, folder, family)
            seen = self._watch(family, lines)
            family.wait("run", LIMIT_SECONDS)
        self.run.check(lines)
        through = [held for rounds, held in seen if 1 <= rounds < self.run.rounds]
        if not through:
            raise MeasureError("the rounds were over before the memory was sampled; use more rounds")
        return {
            "memory of all at most": max(held for _, held in seen),
            "memory of all, median through the rounds": statistics.median(through),
        }

    def _watch(self, family: Family, lines: Path) -> list[tuple[int, float]]:
        """Return pairs of the number of ended rounds and the memory in megabytes."""
        seen, until = list[tuple[int, float]](), time.monotonic() + LIMIT_SECONDS
        while family.started[-1].poll() is None and time.monotonic() < until:
            rounds = lines.read_bytes().count(b"\n") if lines.exists() else 0
            seen.append((rounds, family.memory()["pss_MB"]))
            time.sleep(PAUSE_SECONDS)
        return seen
