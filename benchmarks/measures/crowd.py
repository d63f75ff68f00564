"""Fleets in which few devices get tasks.

The class `Crowd` measures rounds with ten thousand connected devices. The class `Restart` measures the restart of a
broker to which a thousand devices are connected.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from benchmarks.harness.measure import Figure, MeasureError
from benchmarks.harness.processes import resident_megabytes
from benchmarks.harness.trees import Tree
from benchmarks.measures.answers import COST, Swarm, cost

# The broker is killed this number of seconds after all devices have connected and ten of them have got a task. After
# a shorter connection, a device waits before it connects again, and the measure would include this wait.
STABLE_SECONDS = 12.0
POLL_SECONDS = 0.05
LIMIT_SECONDS = 120.0


@dataclass(frozen=True)
class Crowd:
    robots: int = 10_000
    asked: int = 1_000
    rounds: int = 3
    figures: ClassVar = {"coordinator's peak": Figure("MB", steady=True), **COST}

    @property
    def name(self) -> str:
        return f"crowd-{self.robots}"

    @property
    def what(self) -> str:
        return f"{self.robots} connected robots; {self.asked} get a task in a round, and all in the last evaluation"

    def take(self, tree: Tree, folder: Path) -> dict[str, float]:
        with Swarm(tree, folder, self.robots, self.rounds, cohort=self.asked) as swarm:
            before = swarm.at_round(1)
            after = swarm.at_round(self.rounds)
            peak = resident_megabytes("VmHWM", swarm.process.pid)
            records = swarm.finish()[1 : self.rounds]
        answers = self.asked * (self.rounds - 1)
        return {"coordinator's peak": peak, **cost(before, after, records, answers)}


@dataclass(frozen=True)
class Restart:
    robots: int = 1_000
    figures: ClassVar = {
        "hellos are spread over": Figure("s", "higher"),
        "all are served": Figure("s after the broker is back"),
        "coordinator's CPU a robot": Figure("ms"),
    }

    @property
    def name(self) -> str:
        return f"restart-{self.robots}"

    @property
    def what(self) -> str:
        return f"a broker that is killed and restarted under {self.robots} connected robots; ten robots have a task"

    def take(self, tree: Tree, folder: Path) -> dict[str, float]:
        with Swarm(tree, folder, self.robots, 1, cohort=10, hold_seconds=600.0) as swarm:
            swarm.until(lambda: swarm.ask_robots()["answers"] >= 10, "the first ask")
            time.sleep(STABLE_SECONDS)
            before = swarm.sample()
            swarm.broker.kill()
            killed = time.time()
            swarm.broker.start()
            first, last, served = self._watch(swarm, killed)
            spent = swarm.sample().process - before.process
        return {
            "hellos are spread over": last - first,
            "all are served": served,
            "coordinator's CPU a robot": spent.cpu_ns / 1e6 / self.robots,
        }

    def _watch(self, swarm: Swarm, killed: float) -> tuple[float, float, float]:
        """Return three numbers of seconds since the broker's start.

        They are the times of the first robot's hello, of the last robot's hello, and of the moment when the
        coordinator has received a message from every robot. If a robot sends its hello before the coordinator
        has connected again, the hello is lost. But the broker retains the first message of each robot's new
        connection, so the coordinator receives this message later.
        """
        began, first, last = time.monotonic(), 0.0, 0.0
        while (seconds := time.monotonic() - began) < LIMIT_SECONDS:
            told = swarm.ask_robots()
            first = first or (seconds if told["back again"] else 0.0)
            if told["back again"] == self.robots:
                last = last or seconds
                if swarm.heard_since(killed) == self.robots:
                    return first, last, time.monotonic() - began
            time.sleep(POLL_SECONDS)
        raise MeasureError(
            f"after {LIMIT_SECONDS:.0f} s, the robots report {swarm.ask_robots()}, and the coordinator has received "
            f"messages from {swarm.heard_since(killed)} robots"
        )
