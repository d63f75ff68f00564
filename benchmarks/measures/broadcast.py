"""The cost of sending one model to a thousand devices, and a thousand models back.

The figures are the bytes on the wire, divided by the bytes of the arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.harness.measure import Figure
from benchmarks.harness.processes import resident_megabytes
from benchmarks.harness.trees import Tree
from benchmarks.measures.answers import COST, Swarm, cost, total

# The model has 193*253 + 254*16 + 17*10 = 53,063 parameters: 212 kB in four blocks.
MODEL = {"method": {"name": "fedavg"}, "network": {"name": "mlp", "feature_size": 253}, "size": 8}


@dataclass(frozen=True)
class Broadcast:
    robots: int
    rounds: int = 3
    figures: ClassVar = {
        **COST,
        "down: wire / payload": Figure("", steady=True),
        "wire / payload": Figure("", steady=True),
        "coordinator's peak": Figure("MB", steady=True),
    }

    @property
    def name(self) -> str:
        return f"broadcast-{self.robots}"

    @property
    def what(self) -> str:
        return f"a model of 212 kB to {self.robots} robots; each robot sends another model back"

    def take(self, tree: Tree, folder: Path) -> dict[str, float]:
        with Swarm(tree, folder, self.robots, self.rounds, learning=MODEL) as swarm:
            before = swarm.at_round(1)
            after = swarm.at_round(self.rounds)
            peak = resident_megabytes("VmHWM", swarm.process.pid)
            records = swarm.finish()[1 : self.rounds]
        return {
            **cost(before, after, records, self.robots * (self.rounds - 1)),
            "down: wire / payload": down(records, "wire") / down(records, "payload"),
            "wire / payload": total(records, "wire") / total(records, "payload"),
            "coordinator's peak": peak,
        }


def down(records: list[dict[str, Any]], what: str) -> int:
    return sum(sum(record[what]["down"].values()) for record in records)
