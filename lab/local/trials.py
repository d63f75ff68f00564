"""Show the trials of a `protofleet sweep`: their table, the best point, and warnings about the grid.

The value of a point is the mean validation accuracy over its seeds. The measured view is the view that the method's
paper reports, for example the global model. `choose` names the round whose accuracy is used. Test samples have no
part in the choice: the table only shows the accuracy on test samples.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Final

from protofleet.lab.local.batch import is_finished, outcome
from protofleet.lab.local.data_check import validation_images
from protofleet.lab.local.grid import Grid, GridPoint
from protofleet.lab.local.run import renamed
from protofleet.lab.report.comparison import (
    ComparedRun,
    Group,
    MeasuredPoint,
    accuracy_target,
    best_by_validation,
    read_groups,
    write,
)
from protofleet.lab.report.comparison_page import comparison_page
from protofleet.lab.report.comparison_tables import Table, mean_and_deviation, origin_table, tables
from protofleet.lab.report.noise import noise_in
from protofleet.lab.report.numbers import percent_points
from protofleet.lab.report.virtual_runs import virtual_tables
from protofleet.protocol.link.meter import human_bytes
from protofleet.runtime.command.errors import RunError

FOLDER: Final = "sweeps"  # The name of the folder of sweeps inside the folder of all runs.


def at_the_end(points: Sequence[MeasuredPoint], view: str) -> MeasuredPoint | None:
    return points[-1] if points and points[-1].validation else None


Choice = Callable[[Sequence[MeasuredPoint], str], MeasuredPoint | None]
CHOICES: Final[Mapping[str, Choice]] = {"validation": at_the_end, "best-validation": best_by_validation}


@dataclass(frozen=True)
class Trial:
    """A point of the grid with the accuracy of its finished runs."""

    point: GridPoint
    group: Group | None  # The finished runs of the point; None if no run has finished.
    measured: tuple[MeasuredPoint, ...]  # The chosen measurement of each run that has validation samples.

    @property
    def is_whole(self) -> bool:
        return len(self.measured) == len(self.point.trials)

    @property
    def validation(self) -> list[float]:
        return [one.validation["mean"] for one in self.measured]

    @property
    def test(self) -> list[float]:
        return [one.accuracy["mean"] for one in self.measured]

    @property
    def bytes(self) -> list[int]:
        runs: Sequence[ComparedRun] = self.group.runs if self.group else ()
        return [run.total_bytes("payload", "up", "down") for run in runs]

    @property
    def state(self) -> str:
        missing = len(self.point.trials) - len(self.measured)
        return f"{missing} of {len(self.point.trials)} without a result" if missing else ""


@dataclass(frozen=True)
class SweepTrials:
    grid: Grid
    choose: str
    trials: tuple[Trial, ...]
    # Number of validation images of a run; None if the data are not on this machine.
    validation_images: int | None = None

    @property
    def chosen(self) -> Trial | None:
        """Return the trial with the highest mean. Only trials whose runs have all finished are compared.

        If several trials have the same mean, a trial whose values are not at an end of an axis is preferred.
        If there are still several, the first one is returned.
        """
        whole = [trial for trial in self.trials if trial.is_whole]
        return max(whole, key=lambda trial: (fmean(trial.validation), not self._is_end(trial)), default=None)

    def _is_end(self, trial: Trial) -> bool:
        return any(axis.is_end(value) for axis, value in zip(self.grid.axes, trial.point.values, strict=True))

    @property
    def near(self) -> list[Trial]:
        """Return the other finished trials whose mean is close to the mean of the chosen trial.

        Two means are close if their difference is at most the standard deviation over the chosen trial's seeds.
        """
        if (best := self.chosen) is None:
            return []
        limit = fmean(best.validation) - (stdev(best.validation) if len(best.validation) > 1 else 0.0)
        return [
            trial for trial in self.trials
            if trial is not best and trial.is_whole and fmean(trial.validation) >= limit
        ]  # fmt: skip

    def warnings(self) -> list[str]:
        if (best := self.chosen) is None:
            return ["nothing is chosen: no point has a result of every seed"]
        found = []
        for axis, value in zip(self.grid.axes, best.point.values, strict=True):
            if axis.is_end(value):
                found.append(
                    f"{axis.key} = {value} is an end of its grid ({', '.join(axis.values)}): the best may lie beyond "
                    "it; widen the grid there, and the trials that there are count"
                )
        if len(best.point.trials) == 1:
            found.append("one seed: what is chosen may be chance; name more with --seeds")
        equal = [
            self.grid.words(trial.point) for trial in self.trials
            if trial is not best and trial.is_whole and fmean(trial.validation) == fmean(best.validation)
        ]  # fmt: skip
        classes = best.point.trials[0].classes
        if noise := noise_in(best.validation, equal, self.validation_images, classes):
            found.append(noise)
        return found

    @property
    def groups(self) -> list[Group]:
        return [trial.group for trial in self.trials if trial.group]

    def table(self) -> Table:
        head = [*(axis.key for axis in self.grid.axes), "seeds", "validation", "test", "tensors", "choice"]
        rows = [
            [
                *trial.point.values, str(len(trial.measured)),
                mean_and_deviation(trial.validation, percent_points), mean_and_deviation(trial.test, percent_points),
                mean_and_deviation(trial.bytes, human_bytes), self._remark(trial),
            ]
            for trial in self.trials
        ]  # fmt: skip
        when = (
            "after the last round" if self.choose == "validation" else "at the round that validation chooses"
        )
        note = (
            f"Accuracy in % {when}, mean over domains; with several seeds: mean ± sample standard deviation. "
            "Validation chooses; test is shown."
        )
        return Table(f"Trials of {self.grid.name}", note, head, rows)

    def _remark(self, trial: Trial) -> str:
        return trial.state or ("chosen" if trial is self.chosen else "near" if trial in self.near else "")

    def lines(self) -> list[str]:
        """Return the lines that are printed below the table."""
        best = self.chosen
        chosen = [f"chosen: {self.grid.words(best.point)}"] if best else []
        near = [f"at most a deviation below it: {self.grid.words(trial.point)}" for trial in self.near]
        return [*chosen, *near, *(f"warning: {text}" for text in self.warnings())]

    def as_json(self) -> str:
        found: dict[str, Any] = {
            "experiment": self.grid.name, "choose": self.choose,
            "grid": {axis.key: list(axis.values) for axis in self.grid.axes},
            "chosen": self._settings(self.chosen), "near": [self._settings(trial) for trial in self.near],
            "warnings": self.warnings(), "trials": [self._row(trial) for trial in self.trials],
        }  # fmt: skip
        return json.dumps(found, indent=1, allow_nan=False) + "\n"

    def _settings(self, trial: Trial | None) -> dict[str, str] | None:
        axes = (axis.key for axis in self.grid.axes)
        return dict(zip(axes, trial.point.values, strict=True)) if trial else None

    def _row(self, trial: Trial) -> dict[str, Any]:
        return {
            "settings": self._settings(trial), "runs": [one.name for one in trial.point.trials],
            "validation": trial.validation, "test": trial.test, "tensor_bytes": trial.bytes,
        }  # fmt: skip


def one_group(groups: Sequence[Group]) -> Group:
    """Join the groups of runs that belong to one point of the grid.

    All runs of a point have the same settings. But an earlier version wrote fewer settings, so its runs are in a
    group of their own.
    """
    first, *others = groups
    return replace(first, runs=[*first.runs, *(run for group in others for run in group.runs)])


def read_trials(grid: Grid, runs: Path, choose: str) -> SweepTrials:
    """Read the finished runs of a grid.

    Raise RunError if runs have finished, but none of them has validation samples. The validation accuracy is
    needed to choose a point.
    """
    found = []
    for point in grid.points:
        finished = [
            runs / trial.name
            for trial in point.trials
            if is_finished(trial, runs) and outcome(trial, runs) == "finished"
        ]
        group = one_group(read_groups(finished)) if finished else None
        measured = (
            [CHOICES[choose](run.points(group.view), group.view) for run in group.runs] if group else []
        )
        found.append(Trial(point, group, tuple(one for one in measured if one is not None)))
    if any(trial.group for trial in found) and not any(trial.measured for trial in found):
        raise RunError(
            f"no trial of {grid.name} has a validation accuracy, and the best trial is chosen by this accuracy; "
            "set data.validation to a share above 0"
        )
    trials = SweepTrials(grid, choose, tuple(found))
    best = trials.chosen
    return replace(trials, validation_images=validation_images(best.point.trials[0])) if best else trials


def put_aside(folder: Path, grid: Grid) -> None:
    """Rename the folder of an earlier sweep with this name, if the earlier sweep varied other settings.

    If the earlier sweep varied the same settings, the new sweep replaces the files of the earlier sweep.
    """
    try:
        before = list(json.loads((folder / "trials.json").read_text())["grid"])
    except (OSError, ValueError, LookupError, TypeError):
        return
    if before != [axis.key for axis in grid.axes]:
        print(f"the earlier sweep, which varied {', '.join(map(str, before))}, is now in {renamed(folder)}")


def write_trials(trials: SweepTrials, runs: Path) -> Path:
    """Write the trials as JSON, Markdown and a page, and return the path of the page."""
    folder = runs / FOLDER / trials.grid.name
    put_aside(folder, trials.grid)
    write(folder / "trials.json", trials.as_json())
    below = "".join(f"- {line}\n" for line in trials.lines())
    groups = trials.groups
    origin = origin_table(groups)
    others = "\n".join(table.markdown() for table in [*virtual_tables(groups), origin])
    write(folder / "trials.md", f"{trials.table().markdown()}\n{below}\n{others}")
    page = folder / "sweep.html"
    own = trials.table()
    found = replace(
        own, note=" ".join([own.note, *(f"{line[0].upper()}{line[1:]}." for line in trials.lines())])
    )
    baseline = trials.chosen.group if trials.chosen else None
    target = accuracy_target(groups, baseline.name if baseline else "", 0.9)
    shown = [found, *tables(groups, target, 0.9), *virtual_tables(groups), origin]
    write(page, comparison_page(groups, shown, f"Sweep {trials.grid.name}"))
    return page
