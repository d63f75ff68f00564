"""The bytes that a round writes on a device's disk. They matter because flash cards are small and wear out.

The program counts the bytes of every file that a device syncs to its disk in whole simulated rounds. It also
measures the largest size of the device's folder.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path

from benchmarks.programs.member import made_up
from protofleet.coordinator.round.policy import Policy
from protofleet.lab.simulation.federation import Simulation
from protofleet.methods.contract.plan import Network, Plan
from protofleet.protocol.storage.disk import Disk

ROUNDS, DEVICES, EXAMPLES, CLASSES = 6, 2, 60, 10
METHODS = ("fedavg", "fedproto", "fedlsa", "fedplcc", "fedpall")
# ".part" is a broadcast. ".new" is the book, which lists all other files. The remaining files are updates and
# states.
KINDS = {".part": "received", ".new": "book"}


@dataclass
class Written:
    """The bytes and syncs of one device so far."""

    bytes: Counter[str] = field(default_factory=Counter)
    syncs: int = 0


class MeteredDisk(Disk):
    """A disk that counts the bytes that are synced, and does not wait for the real disk."""

    def __init__(self, written: Written) -> None:
        super().__init__(durable=False)
        self.written = written

    def sync(self, path: Path) -> None:
        super().sync(path)
        self.written.syncs += 1
        if path.is_file():
            self.written.bytes[KINDS.get(path.suffix, "made")] += path.stat().st_size


def measure(methods: Sequence[str] = METHODS, rounds: int = ROUNDS) -> dict[str, object]:
    return {"rounds": rounds, "examples": EXAMPLES, **{method: one(method, rounds) for method in methods}}


def one(method: str, rounds: int = ROUNDS, network: Network | None = None) -> dict[str, int]:
    known = {f.name for f in fields(Plan(method, CLASSES, rounds).load().Hyper)}
    quick = {k: v for k, v in {"epochs": 1, "batch": 32, "server_epochs": 1}.items() if k in known}
    plan = Plan(method, CLASSES, rounds, 1, 8, network or Network("mlp", 251), quick)
    written = Written()
    with tempfile.TemporaryDirectory() as place:
        most = run(plan, Path(place), written)
    each = {f"{what}_bytes_a_round": size // (rounds + 1) for what, size in written.bytes.items()}
    return {**each, "syncs_a_round": written.syncs // (rounds + 1), "folder_bytes_at_most": most}


def run(plan: Plan, folder: Path, written: Written) -> int:
    """Run the plan to its end. Return the largest size that the device's folder had when a round began."""
    names, most = [f"device-{i}" for i in range(DEVICES)], 0
    shards = {name: made_up(name, CLASSES, plan.size, EXAMPLES) for name in names}
    policy = Policy(quorum=DEVICES, cohort=DEVICES, settle_seconds=0.5)
    sim = Simulation(
        plan, shards, policy, folder,
        make_disk=lambda name: MeteredDisk(written) if name == names[0] else Disk(durable=False),
    )  # fmt: skip
    while not sim.service.finished:
        sim.run(until=partial(past, sim, sim.service.run.machine.round))
        most = max(most, taken(folder / names[0]))
    return most


def past(sim: Simulation, round: int) -> bool:
    return sim.service.finished or sim.service.run.machine.round > round


def taken(folder: Path) -> int:
    """Return the bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
