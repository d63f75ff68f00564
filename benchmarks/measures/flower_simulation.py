"""Measure a training round of ten devices in protofleet and in Flower's simulation, one after the other.

The devices of protofleet share processes. Both systems train the network of benchmarks/programs/bare.py on the same
number of samples with the same steps. Both systems have as many worker processes as there are cores, and each worker
has one torch thread. Our messages are sealed and go through a real
broker, and each update is stored on the disk. Flower's simulation (Ray, in its own environment) passes objects in
memory. No model is evaluated. Seconds and CPU of all processes are counted from the end of the first round to the end
of the last round.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.harness.measure import Figure, MeasureError
from benchmarks.harness.processes import Family
from benchmarks.harness.trees import ROOT, Tree
from benchmarks.measures.flower import PEER, QUIET, VERSION, NotInstalled, environment
from benchmarks.programs.hosted_round import ROUNDS
from benchmarks.programs.round_cost import EXAMPLES
from benchmarks.programs.rounds import DEVICES

# Flower's environment has the same version of torch as ours.
WANTED = (f"flwr[simulation]=={VERSION}", "numpy>=2,<3", f"torch=={version('torch')}")
LIMIT_SECONDS, POLL_SECONDS = 1800.0, 0.01


@dataclass(frozen=True)
class FlowerSimulation:
    epochs: int = 1
    rounds: int = ROUNDS
    figures: dict[str, Figure] = field(
        default_factory=lambda: {
            "seconds over Flower's": Figure("", steady=True),
            "CPU over Flower's": Figure("", steady=True),
            "seconds a round": Figure("s"),
            "CPU a round": Figure("s"),
            "Flower's seconds a round": Figure("s"),
            "Flower's CPU a round": Figure("s"),
        }
    )

    @property
    def name(self) -> str:
        return f"flower-simulation-{self.epochs}"

    @property
    def what(self) -> str:
        return (
            f"a round of {DEVICES} devices x {EXAMPLES} samples x {self.epochs} epoch{'s' * (self.epochs > 1)} x "
            f"53,002 parameters in as many processes as cores, compared with the simulation of {PEER}"
        )

    def take(self, tree: Tree, folder: Path) -> dict[str, float]:
        try:
            theirs = self._flower(environment("flower-simulation-venv", WANTED), folder / "flower")
        except (NotInstalled, RuntimeError) as error:
            raise MeasureError(f"Flower: {error}") from None
        ours = self._ours(tree, folder / "ours")
        return {
            "seconds over Flower's": ours["seconds"] / theirs["seconds"],
            "CPU over Flower's": ours["cpu"] / theirs["cpu"],
            "seconds a round": ours["seconds"],
            "CPU a round": ours["cpu"],
            "Flower's seconds a round": theirs["seconds"],
            "Flower's CPU a round": theirs["cpu"],
        }

    def _ours(self, tree: Tree, folder: Path) -> dict[str, Any]:
        folder.mkdir()
        wish = {"epochs": self.epochs, "processes": os.cpu_count() or 1, "rounds": self.rounds}
        command = tree.command("benchmarks.programs.show", "hosted_round", json.dumps(wish))
        with Family(folder, tree.environment()) as family:
            try:
                said = family.finish("ours", LIMIT_SECONDS, *command)
            except RuntimeError as error:
                raise MeasureError(str(error)) from None
        return dict(json.loads(said.splitlines()[-1]))

    def _flower(self, python: Path, folder: Path) -> dict[str, float]:
        folder.mkdir()
        program, notes = ROOT / "benchmarks" / "flower_app" / "simulation.py", folder / "notes"
        wish = {
            "devices": DEVICES, "rounds": self.rounds, "epochs": self.epochs, "examples": EXAMPLES,
            "processes": os.cpu_count() or 1, "notes": str(notes),
        }  # fmt: skip
        shared = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "FLWR_HOME": str(folder)}
        with Family(folder, {**QUIET, **shared, "RAY_USAGE_STATS_ENABLED": "0"}) as family:
            family.start("simulation", str(python), str(program), json.dumps(wish))
            first, before = self._ended(family, notes, 1)
            last, after = self._ended(family, notes, self.rounds)
        rounds = self.rounds - 1
        return {"seconds": (last - first) / rounds, "cpu": (after - before) / rounds}

    def _ended(self, family: Family, notes: Path, number: int) -> tuple[float, float]:
        """Wait for the end of a round. Return the time of the end, and the CPU seconds of all processes until now."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while True:
            moments = notes.read_text().split("\n")[:-1] if notes.exists() else []
            if len(moments) > number:  # The first time in the file is the beginning of the first round.
                return float(moments[number]), family.cpu_seconds()
            if time.monotonic() > deadline or family.started[-1].poll() is not None:
                raise RuntimeError(f"round {number} did not end; {family.last_words()}")
            time.sleep(POLL_SECONDS)
