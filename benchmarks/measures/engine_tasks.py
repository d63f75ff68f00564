"""The CPU of a trial as a task of a real Ray, compared with the CPU of the same trial as a task of a real Slurm.

Both engines run on this machine. The CPU of the command counts, with its children such as `sbatch` or the driver of
Ray, and the CPU of the tasks. The processes of the engines themselves do not count.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from benchmarks.harness.measure import Figure, MeasureError
from benchmarks.harness.trees import Tree
from benchmarks.measures.sweep_tasks import experiment
from protofleet.protocol.settings.reader import write_toml
from tests.engines.ray_cluster import NoRay, running_ray
from tests.engines.slurm_cluster import NoSlurm, running_slurm

LIMIT_SECONDS = 1200.0
# A line of the setup. It runs the task once more as a child, and then writes the CPU of this child to a file. The
# task of Slurm is the script itself, and the task of Ray is in the arguments.
TIMED = (
    '[ -n "$BENCH_TIMED" ] || {{ export BENCH_TIMED=1; if [ $# -gt 0 ]; then "$@"; else sh "$0"; fi; code=$?; '
    "times >>{file}; exit $code; }}"
)
TIMES = re.compile(r"(\d+)m([\d.]+)s")


@dataclass(frozen=True)
class EngineTasks:
    """A sweep with one trial a task, on Slurm and on Ray."""

    rates: tuple[str, ...] = ("0.01", "0.02", "0.05", "0.1")  # A trial each.
    rounds: int = 3
    figures: ClassVar = {
        "CPU a trial, Ray / Slurm": Figure("", steady=True),
        "CPU a trial, Slurm": Figure("s"),
        "CPU a trial, Ray": Figure("s"),
    }

    @property
    def name(self) -> str:
        return "engine-tasks"

    @property
    def what(self) -> str:
        return "a trial (6 devices, 3 rounds) in a task of a real Ray, compared with a task of a real Slurm"

    def take(self, tree: Tree, folder: Path) -> dict[str, float]:
        try:
            with running_slurm() as slurm:
                on_slurm = self._spent(tree, folder / "slurm", "slurm", slurm.environment)
            with running_ray() as ray:
                on_ray = self._spent(tree, folder / "ray", "ray", ray.environment)
        except (NoSlurm, NoRay) as error:
            raise MeasureError(str(error)) from None
        return {
            "CPU a trial, Ray / Slurm": on_ray / on_slurm,
            "CPU a trial, Slurm": on_slurm,
            "CPU a trial, Ray": on_ray,
        }

    def _spent(self, tree: Tree, folder: Path, engine: str, environment: Mapping[str, str]) -> float:
        """Return the CPU seconds of a trial in a sweep on the engine."""
        folder.mkdir()
        times = folder / "times"
        setup = [TIMED.format(file=times)]
        path = folder / "experiment.toml"
        path.write_text(write_toml({**experiment(self.rounds), "engine": {"on": engine, "setup": setup}}))
        words = (
            "sweep",
            str(path),
            "--grid",
            f"method.lr={','.join(self.rates)}",
            "--runs",
            str(folder / "runs"),
        )
        before = os.times()
        done = subprocess.run(
            tree.command("protofleet", *words), cwd=folder, env={**tree.environment(), **environment, **ours(tree)},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_SECONDS,
        )  # fmt: skip
        after = os.times()
        if done.returncode:
            raise MeasureError(f"the sweep on {engine} has failed: {(done.stdout + done.stderr)[-600:]}")
        own = after.children_user + after.children_system - before.children_user - before.children_system
        tasks = sum(60 * float(one) + float(two) for one, two in TIMES.findall(times.read_text()))
        return (own + tasks) / len(self.rates)


def ours(tree: Tree) -> dict[str, str]:
    """Return the variables of the tree, which the environment of an engine would replace."""
    return {key: tree.environment()[key] for key in ("PYTHONPATH", "OMP_NUM_THREADS")}
