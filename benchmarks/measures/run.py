"""The costs of `protofleet run`, as a user starts it.

The figures are the seconds and the CPU until the end of the first round, the memory at that moment, and the seconds
and the CPU of the whole run.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from benchmarks.harness.measure import Figure, MeasureError
from benchmarks.harness.processes import Family
from benchmarks.harness.trees import Tree
from protofleet.protocol.settings.reader import write_toml

NAME = "bench"
POLL_SECONDS = 0.01
LIMIT_SECONDS = 600.0


@dataclass(frozen=True)
class Run:
    devices: int = 10
    rounds: int = 5
    # True if each device must have its own process, even on a machine where devices would usually share processes.
    process_each: bool = False
    figures: ClassVar = {
        "first round": Figure("s"),
        "CPU of all until then": Figure("s"),
        "memory of all then": Figure("MB", steady=True),
        "whole run": Figure("s"),
        "after the last round": Figure("s"),
        "CPU of the whole run": Figure("s"),
    }

    @property
    def name(self) -> str:
        return f"run-{self.devices}" + "-each" * self.process_each

    @property
    def what(self) -> str:
        how = ", a process each" if self.process_each else ""
        return f"`protofleet run`, FedAvg on digits, {self.devices} devices, {self.rounds} rounds{how}"

    def take(self, tree: Tree, folder: Path) -> dict[str, float]:
        with Family(folder, tree.environment()) as family:
            spent = os.times()
            began = time.monotonic()
            lines = self.start(tree, folder, family)
            process = family.started[-1]

            def wait_for(number: int) -> float:
                while not lines.exists() or lines.read_bytes().count(b"\n") < number:
                    if process.poll() is not None or time.monotonic() > began + LIMIT_SECONDS:
                        raise MeasureError(f"fewer than {number} rounds have ended: {family.last_words()}")
                    time.sleep(POLL_SECONDS)
                return time.monotonic() - began

            first, cpu, memory = wait_for(1), family.cpu_seconds(), family.memory()
            last = wait_for(self.rounds + 1)  # The last evaluation counts as one more round.
            family.wait("run", LIMIT_SECONDS)
            whole, after = time.monotonic() - began, os.times()
        self.check(lines)
        return {
            "first round": first,
            "CPU of all until then": cpu,
            "memory of all then": memory["pss_MB"],
            "whole run": whole,
            "after the last round": whole - last,
            # CPU of all processes that have ended. The command `run` has waited for its children, and this process
            # has waited for `run`, so the kernel has added their CPU to the children of this process.
            "CPU of the whole run": after.children_user + after.children_system
            - spent.children_user - spent.children_system,
        }  # fmt: skip

    def start(self, tree: Tree, folder: Path, family: Family) -> Path:
        """Start the run, and return the path of its rounds.jsonl."""
        (folder / "experiment.toml").write_text(write_toml(self._experiment()))
        command = tree.command(
            "protofleet", "run", str(folder / "experiment.toml"), "--runs", str(folder / "runs")
        )
        family.start("run", *command)
        return folder / "runs" / NAME / "rounds.jsonl"

    def _experiment(self) -> dict[str, object]:
        devices: dict[str, object] = {"count": self.devices}
        if self.process_each:
            devices["processes"] = "each"
        return {
            "name": NAME, "rounds": self.rounds, "seed": 1, "method": {"name": "fedavg", "epochs": 1},
            "network": {"name": "cnn23"}, "data": {"source": "digits", "domain": "mnist", "samples": 600},
            "devices": devices,
        }  # fmt: skip

    def check(self, lines: Path) -> None:
        summary = lines.with_name("summary.json")
        records = [json.loads(line) for line in lines.read_text().splitlines()]
        if not summary.exists() or len(records) != self.rounds + 1:
            raise MeasureError(
                f"the run wrote {len(records)} records instead of {self.rounds} rounds and an evaluation"
            )
        missing = [r["round"] for r in records[:-1] if len(r["participants"]) != self.devices]
        if missing:
            raise MeasureError(
                f"in the rounds {missing}, not all of the {self.devices} devices took part, so these "
                "rounds cannot be measured"
            )
