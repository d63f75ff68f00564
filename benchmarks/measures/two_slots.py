"""The CPU of two runs at once, compared with the CPU of the same two runs one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.harness.measure import Figure, MeasureError
from benchmarks.harness.processes import cpu_seconds
from benchmarks.harness.trees import Tree
from benchmarks.measures.queue_fleet import LEARNING, QueueFleet


@dataclass(frozen=True, slots=True)
class Spent:
    """CPU seconds of the coordinator, and of the coordinator and all devices."""

    coordinator: float
    all: float


@dataclass(frozen=True)
class TwoSlots:
    epochs: int  # Epochs of training of a device in a round; one epoch takes about 7 ms of CPU.
    devices: int = 4
    rounds: int = 40
    overlap: float = 0.7  # Least part of the time of two runs at once in which both are active.
    figures: ClassVar = {
        "coordinator's CPU, at once / in turn": Figure("", steady=True),
        "CPU of all, at once / in turn": Figure("", steady=True),
        "coordinator's CPU in turn": Figure("s"),
        "CPU of all in turn": Figure("s"),
    }

    @property
    def name(self) -> str:
        return f"two-slots-{self.epochs}"

    @property
    def what(self) -> str:
        return (
            f"two runs of {self.rounds} rounds at once (slots = 2), compared with the same runs in turn (slots = 1), "
            f"on {self.devices} devices that train {self.epochs} epoch{'s' * (self.epochs > 1)}"
        )

    def take(self, tree: Tree, folder: Path) -> dict[str, float]:
        found: dict[int, list[Spent]] = {1: [], 2: []}
        with QueueFleet(tree, folder, self.devices) as fleet:
            # A cost that grows with the age of the devices has the same part in both sums.
            for number, slots in enumerate((2, 1, 1, 2)):
                found[slots].append(self._spent(fleet, slots, number))
        at_once, in_turn = total(found[2]), total(found[1])
        return {
            "coordinator's CPU, at once / in turn": at_once.coordinator / in_turn.coordinator,
            "CPU of all, at once / in turn": at_once.all / in_turn.all,
            "coordinator's CPU in turn": in_turn.coordinator,
            "CPU of all in turn": in_turn.all,
        }

    def _spent(self, fleet: QueueFleet, slots: int, number: int) -> Spent:
        """Return the CPU of two runs under a new coordinator, after a first run that imports what runs need."""
        fleet.start_coordinator(slots)
        self._conduct(fleet, f"first-{number}")
        before = spent(fleet)
        rows = self._conduct(fleet, f"red-{number}", f"blue-{number}")
        after = spent(fleet)
        demand_order(list(rows.values()), slots, self.overlap)
        fleet.end_coordinator()
        return Spent(after.coordinator - before.coordinator, after.all - before.all)

    def _conduct(self, fleet: QueueFleet, *runs: str) -> dict[str, Mapping[str, Any]]:
        n = self.devices
        policy = {"quorum": n, "gather": n, "settle_seconds": 0.0, "straggler_factor": 0.0}
        for run in runs:
            method = {**LEARNING["method"], "epochs": self.epochs}
            fleet.submit(run, rounds=self.rounds, policy=policy, method=method)
        return fleet.finish(dict.fromkeys(runs, self.rounds))


def total(found: Sequence[Spent]) -> Spent:
    return Spent(sum(one.coordinator for one in found), sum(one.all for one in found))


def spent(fleet: QueueFleet) -> Spent:
    return Spent(cpu_seconds(fleet.process.pid), fleet.family.cpu_seconds())


def demand_order(rows: Sequence[Mapping[str, Any]], slots: int, overlap: float = 0.7) -> None:
    """Raise MeasureError if two runs were not at once with two slots, or not in turn with one slot.

    The rows of the queue have times in whole seconds, so a difference of one second is allowed.
    """
    first, second = sorted(rows, key=lambda row: (row["started"], row["ended"]))
    together = max(0, min(first["ended"], second["ended"]) - second["started"])
    whole = max(first["ended"], second["ended"]) - first["started"]
    if (slots == 1 and together > 1) or (slots == 2 and together < overlap * whole - 1):
        raise MeasureError(
            f"with slots = {slots}, the two runs were active together for {together} s of {whole} s"
        )
