"""The CPU of a trial in a task of an engine, compared with the CPU of a trial of a sweep in one process.

The tasks are started one after another, without an engine: only the start of the process makes them differ.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from benchmarks.harness.measure import Figure, MeasureError
from benchmarks.harness.processes import Family
from benchmarks.harness.trees import Tree
from protofleet.lab.local.engine_folder import EngineFolder
from protofleet.lab.local.experiment import Experiment
from protofleet.lab.local.grid import plan_grid, read_axis
from protofleet.protocol.settings.reader import write_toml

NAME = "bench"
SEEDS = (1, 2, 3)
LIMIT_SECONDS = 900.0


@dataclass(frozen=True)
class SweepTasks:
    """Twelve trials: in one process, in four tasks of three, and in twelve tasks. The last ones are sampled."""

    rates: tuple[str, ...] = (
        "0.01",
        "0.02",
        "0.05",
        "0.1",
    )  # The sweep has three trials of each learning rate.
    sampled: int = 4  # Number of tasks with one trial that are measured.
    rounds: int = 3
    figures: ClassVar = {
        "CPU a trial, one a task / one process": Figure("", steady=True),
        "CPU a trial, three a task / one process": Figure("", steady=True),
        "CPU a trial, one process": Figure("s"),
        "CPU of a task whose trial has finished": Figure("s"),
    }

    @property
    def name(self) -> str:
        return "sweep-tasks"

    @property
    def what(self) -> str:
        return (
            "a trial (6 devices, 3 rounds) in a task of one and of three trials, compared with twelve trials in one "
            "process"
        )

    def take(self, tree: Tree, folder: Path) -> dict[str, float]:
        path = folder / "experiment.toml"
        path.write_text(write_toml(experiment(self.rounds)))
        grid = f"method.lr={','.join(self.rates)}"
        trials = plan_grid(path, [read_axis(grid)], SEEDS, []).trials
        with Family(folder, tree.environment()) as family:
            words = (str(path), "--grid", grid, "--seeds", *map(str, SEEDS), "--runs", str(folder / "one"))
            one = self._spent(family, tree, "sweep", *words) / len(trials)
            three = self._tasks(family, tree, folder / "three", trials, 3, len(self.rates)) / len(trials)
            alone = self._tasks(family, tree, folder / "alone", trials, 1, self.sampled) / self.sampled
            again = self._task(family, tree, folder / "alone", 0)
        return {
            "CPU a trial, one a task / one process": alone / one,
            "CPU a trial, three a task / one process": three / one,
            "CPU a trial, one process": one,
            "CPU of a task whose trial has finished": again,
        }

    def _tasks(
        self, family: Family, tree: Tree, runs: Path, trials: Sequence[Experiment], pack: int, number: int
    ) -> float:
        """Return the CPU seconds of the first tasks of a sweep with this pack."""
        files = EngineFolder(runs / "sweeps" / NAME)
        files.make()
        files.write_trials(trials)
        files.write_list(trials, pack)
        spent = sum(self._task(family, tree, runs, index) for index in range(number))
        finished = len(list(runs.glob("*/summary.json")))
        if finished != pack * number:
            raise MeasureError(f"{finished} of {pack * number} trials have finished: {family.last_words()}")
        return spent

    def _task(self, family: Family, tree: Tree, runs: Path, index: int) -> float:
        files = EngineFolder(runs / "sweeps" / NAME)
        return self._spent(family, tree, "trials", str(files.list), str(index), "--runs", str(runs))

    def _spent(self, family: Family, tree: Tree, *words: str) -> float:
        """Return the CPU seconds of a command and of all processes that it has started."""
        before = os.times()
        family.finish("command", LIMIT_SECONDS, *tree.command("protofleet", *words))
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system


def experiment(rounds: int) -> dict[str, object]:
    return {
        "name": NAME, "rounds": rounds, "method": {"name": "fedavg", "lr": 0.05, "epochs": 1},
        "network": {"name": "cnn23"}, "devices": {"per_domain": 1},
        "data": {"source": "digits", "samples": 200, "test_samples": 100, "validation": 0.2},
    }  # fmt: skip
