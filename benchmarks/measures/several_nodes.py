"""The CPU of runs whose parties know two addresses of the broker, compared with runs that know one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from benchmarks.harness.measure import Figure, MeasureError
from benchmarks.harness.processes import Family
from benchmarks.harness.trees import Tree
from protofleet.federation.brokers.local import LocalBroker
from protofleet.protocol.settings.reader import write_toml

NAME = "bench"
LIMIT_SECONDS = 600.0


@dataclass(frozen=True)
class SeveralNodes:
    """Runs in pairs at one Mosquitto, which has two names on this machine. No connection fails."""

    devices: int = 6
    rounds: int = 10
    figures: ClassVar = {
        "CPU, two addresses / one": Figure("", steady=True),
        "CPU with one address": Figure("s"),
    }

    @property
    def name(self) -> str:
        return "several-nodes"

    @property
    def what(self) -> str:
        return (
            f"`protofleet run`, {self.devices} devices, {self.rounds} rounds: CPU of all with two addresses of the "
            "broker, compared with one address"
        )

    def take(self, tree: Tree, folder: Path) -> dict[str, float]:
        spent: dict[int, list[float]] = {1: [], 2: []}
        with LocalBroker(folder / "broker", "mosquitto") as broker:
            # A cost that grows with the age of the broker has the same part in both sums.
            for number, addresses in enumerate((1, 2, 2, 1)):
                own = folder / f"run-{number}"
                own.mkdir()
                spent[addresses].append(self._cpu_of_run(tree, own, self._address(broker.port, addresses)))
        return {
            "CPU, two addresses / one": sum(spent[2]) / sum(spent[1]),
            "CPU with one address": sum(spent[1]) / len(spent[1]),
        }

    def _address(self, port: int, addresses: int) -> dict[str, object]:
        if addresses == 1:
            return {"host": "127.0.0.1", "port": port}
        return {"hosts": [f"127.0.0.1:{port}", f"localhost:{port}"]}

    def _cpu_of_run(self, tree: Tree, folder: Path, address: dict[str, object]) -> float:
        (folder / "experiment.toml").write_text(write_toml(self._experiment(address)))
        command = tree.command(
            "protofleet", "run", str(folder / "experiment.toml"), "--runs", str(folder / "runs")
        )
        with Family(folder, tree.environment()) as family:
            before = os.times()
            family.start("run", *command)
            family.wait("run", LIMIT_SECONDS)
            after = os.times()
        if not (folder / "runs" / NAME / "summary.json").exists():
            raise MeasureError(f"the run has not ended: {family.last_words()}")
        # `run` has waited for its children, and this process for `run`, so the kernel has added their CPU.
        used = after.children_user + after.children_system
        return used - before.children_user - before.children_system

    def _experiment(self, address: dict[str, object]) -> dict[str, object]:
        return {
            "name": NAME, "rounds": self.rounds, "seed": 1, "method": {"name": "fedavg", "epochs": 1},
            "network": {"name": "cnn23"}, "data": {"source": "digits", "domain": "mnist", "samples": 600},
            "devices": {"count": self.devices}, "broker": {"kind": "external", "address": address},
        }  # fmt: skip
