"""The cost of devices without a task.

The class `Idle` measures a round in which only ten of many devices get a task. These ten devices send their updates
only after minutes. The class `IdleService` measures a coordinator with a queue while no run is active.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
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


@dataclass(frozen=True)
class IdleService:
    robots: int
    # Seconds from the hellos of all robots until the counting begins. Without a run, the pauses between the hellos of
    # a device grow to ten minutes.
    settle_seconds: float = 600.0
    seconds: float = 300.0
    figures: ClassVar = {
        "coordinator's CPU": Figure("% of a core"),
        "syncs": Figure("", steady=True),
        "written": Figure("B", steady=True),
        "hellos": Figure("a second", steady=True),
    }

    @property
    def name(self) -> str:
        return f"idle-service-{self.robots}"

    @property
    def what(self) -> str:
        return (
            f"a coordinator with a queue, no run and {self.robots} connected robots; measured for {self.seconds:.0f} "
            f"s, from {self.settle_seconds:.0f} s after the robots have connected"
        )

    def take(self, tree: Tree, folder: Path) -> dict[str, float]:
        with Swarm(tree, folder, self.robots, rounds=0) as swarm:
            swarm.until(lambda: swarm.ask_robots()["hellos"] >= self.robots, "the hellos of all robots")
            # On a busy machine, the coordinator begins after the robots.
            swarm.until(lambda: swarm.syncs.count, "a counted sync (is the library that counts them loaded?)")
            time.sleep(self.settle_seconds)
            before = swarm.sample()
            time.sleep(self.seconds)
            after = swarm.sample()
            if swarm.process.poll() is not None:
                raise MeasureError(f"the coordinator has ended: {swarm.family.last_words()}")
        demand_idle(before.told, after.told, self.robots)
        spent = after.process - before.process
        return {
            "coordinator's CPU": spent.cpu_ns / 1e7 / self.seconds,
            "syncs": after.syncs - before.syncs,
            "written": spent.written,
            "hellos": (after.told["hellos"] - before.told["hellos"]) / self.seconds,
        }


def demand_idle(before: Mapping[str, int], after: Mapping[str, int], robots: int) -> None:
    """Raise MeasureError if a robot was not connected all the time, or took part in a run."""
    lost = after.get("connections lost", 0)
    if (before["connected"], after["connected"], lost, after["answers"]) != (robots, robots, 0, 0):
        raise MeasureError(
            f"the {robots} robots were not connected and idle all the time: {before}, then {after}"
        )
