"""The cost of devices without a task. In the measured round, only ten of many devices get a task.

These ten devices send their updates only after minutes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from benchmarks.harness.measure import Figure, MeasureError
from benchmarks.harness.trees import Tree
from benchmarks.measures.answers import Swarm


@dataclass(frozen=True)
class Idle:
    robots: int
    asked: int = 10
    settle_seconds: float = 60.0  # Seconds from the first task until the counting begins.
    seconds: float = 120.0
    figures: ClassVar = {
        "coordinator's CPU": Figure("% of a core"),
        "syncs": Figure("a second", steady=True),
        "hellos": Figure("a second", steady=True),
    }

    @property
    def name(self) -> str:
        return f"idle-{self.robots}"

    @property
    def what(self) -> str:
        return (
            f"{self.robots} connected robots, of which {self.asked} have a task; measured for {self.seconds:.0f} s, "
            f"from {self.settle_seconds:.0f} s after the tasks were sent"
        )

    def take(self, tree: Tree, folder: Path) -> dict[str, float]:
        hold = self.settle_seconds + self.seconds + 60.0
        with Swarm(tree, folder, self.robots, 1, cohort=self.asked, hold_seconds=hold) as swarm:
            swarm.until(lambda: swarm.ask_robots()["answers"] >= self.asked, "the first ask")
            time.sleep(self.settle_seconds)
            before = swarm.sample()
            time.sleep(self.seconds)
            after = swarm.sample()
        if after.told["connected"] != self.robots or after.told["answers said"]:
            raise MeasureError(f"the robots were not idle: {after.told}")
        if not after.syncs:
            raise MeasureError("no sync was counted, so the library that counts syncs was not loaded")
        return {
            "coordinator's CPU": (after.process - before.process).cpu_ns / 1e7 / self.seconds,
            "syncs": (after.syncs - before.syncs) / self.seconds,
            "hellos": (after.told["hellos"] - before.told["hellos"]) / self.seconds,
        }
