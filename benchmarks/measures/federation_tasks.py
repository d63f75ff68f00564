"""The seconds of a federation in three tasks of a Slurm, compared with the same federation on one machine."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from benchmarks.harness.measure import Figure, MeasureError
from benchmarks.harness.processes import Family
from benchmarks.harness.trees import Tree
from protofleet.protocol.settings.reader import write_toml
from tests.engines.slurm_cluster import NoSlurm, running_slurm

NAME = "bench"
TASKS = 3
LIMIT_SECONDS = 1800.0
POLL_SECONDS = 0.05


@dataclass(frozen=True)
class FederationTasks:
    """One federation on this machine, in tasks, and in tasks that are ended after some rounds.

    The tasks run on a real Slurm of this machine. Without `options`, everything runs without Slurm.
    """

    devices: int = 12
    rounds: int = 40
    epochs: int = 200  # A round takes about a second on two cores.
    options: Sequence[str] = ("--on", "slurm", "--tasks", str(TASKS))
    figures: ClassVar = {
        "seconds, three tasks / one machine": Figure("", steady=True),
        "seconds on one machine": Figure("s"),
        "seconds from SIGTERM until no task is left": Figure("s"),
    }

    @property
    def name(self) -> str:
        return "federation-tasks"

    @property
    def what(self) -> str:
        return (
            f"`protofleet run --on slurm --tasks {TASKS}`, {self.devices} devices, {self.rounds} rounds, compared "
            "with `protofleet run`; it needs a Slurm"
        )

    def take(self, tree: Tree, folder: Path) -> dict[str, float]:
        (folder / "experiment.toml").write_text(write_toml(self._experiment()))
        try:
            with running_slurm() if self.options else contextlib.nullcontext() as slurm:
                return self._taken(tree, folder, slurm.environment if slurm else {})
        except NoSlurm as error:
            raise MeasureError(str(error)) from None

    def _taken(self, tree: Tree, folder: Path, of_slurm: Mapping[str, str]) -> dict[str, float]:
        with Family(folder, {**of_slurm, **tree.environment()}) as family:
            here = self._finished(family, tree, folder / "here", ())
            tasks = self._finished(family, tree, folder / "tasks", self.options)
            ended = self._ended(family, tree, folder / "ended")
        return {
            "seconds, three tasks / one machine": tasks / here,
            "seconds on one machine": here,
            "seconds from SIGTERM until no task is left": ended,
        }

    def _finished(self, family: Family, tree: Tree, runs: Path, options: Sequence[str]) -> float:
        """Return the seconds of a run from the start of the command to its end."""
        begun = time.monotonic()
        self._start(family, tree, runs, options)
        family.wait("run", LIMIT_SECONDS)
        if not (runs / NAME / "summary.json").exists():
            raise MeasureError(f"the run has not ended: {family.last_words()}")
        return time.monotonic() - begun

    def _ended(self, family: Family, tree: Tree, runs: Path) -> float:
        """Return the seconds from SIGTERM to the end of the command, which waits until no task is left."""
        self._start(family, tree, runs, self.options)
        rounds, deadline = runs / NAME / "rounds.jsonl", time.monotonic() + LIMIT_SECONDS
        while not rounds.exists() or rounds.read_text().count("\n") < 2:
            if family.started[-1].poll() is not None or time.monotonic() > deadline:
                raise MeasureError(f"the run has ended no round: {family.last_words()}")
            time.sleep(POLL_SECONDS)
        begun = time.monotonic()
        family.started[-1].send_signal(signal.SIGTERM)
        family.started[-1].wait(LIMIT_SECONDS)
        return time.monotonic() - begun

    def _start(self, family: Family, tree: Tree, runs: Path, options: Sequence[str]) -> None:
        command = tree.command(
            "protofleet", "run", str(family.folder / "experiment.toml"), "--runs", str(runs)
        )
        family.start("run", *command, *options)

    def _experiment(self) -> dict[str, object]:
        return {
            "name": NAME, "rounds": self.rounds, "classes": 2, "network": {"name": "mlp"},
            "method": {"name": "fedavg", "lr": 0.05, "batch": 16, "epochs": self.epochs},
            "data": {"source": "breast_cancer", "split": "dirichlet", "beta": 100.0},
            "devices": {"count": self.devices},
        }  # fmt: skip
