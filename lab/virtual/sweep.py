"""The runs of a sweep in virtual time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from protofleet.lab.local.experiment import Experiment
from protofleet.lab.local.grid import Grid, GridPoint
from protofleet.lab.report.virtual_runs import VIRTUAL
from protofleet.lab.virtual.profiles import ReadProfiles
from protofleet.lab.virtual.simulate import finished_before, simulate


@dataclass(frozen=True)
class VirtualRuns:
    """The runner of a batch whose runs are virtual."""

    read: ReadProfiles

    def is_finished(self, experiment: Experiment, runs: Path) -> bool:
        return finished_before(experiment, runs, self.read)

    def run(self, experiment: Experiment, runs: Path) -> None:
        print(f"report: {simulate(experiment, runs, self.read)}")


def virtual_grid(grid: Grid) -> Grid:
    """Return the grid with the names of virtual trials, so that no real trial counts as one of them."""
    return replace(grid, name=f"{grid.name}-{VIRTUAL}", points=tuple(map(virtual_point, grid.points)))


def virtual_point(point: GridPoint) -> GridPoint:
    trials = [replace(trial, name=f"{point.name}-{VIRTUAL}-s{trial.seed}") for trial in point.trials]
    return replace(point, trials=tuple(trials))
