"""Make a grid of settings.

Each combination of values is a point. A point with a seed is a trial, and each trial is a run.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeAlias

from protofleet.lab.local.experiment import Experiment, read_experiment, recorded
from protofleet.lab.local.run import same_settings
from protofleet.protocol.settings.reader import SettingsError, override, write_toml
from protofleet.protocol.wire.names import NAME

LONGEST_NAME: Final = (
    # Largest number of letters of a point's name. Later, a seed and the number of an earlier run may be added. The
    # name of a run has at most 64 letters.
    50
)
NOT_SEARCHED: Final = {
    "name": "every trial gets its own name",
    "seed": "the seeds are set with --seeds",
    "engine": "it changes no result",
}
Values: TypeAlias = tuple[str, ...]  # One value for each axis, as the user wrote it.


@dataclass(frozen=True)
class Axis:
    key: str  # The full name of a setting, for example method.lr.
    values: Values

    @property
    def label(self) -> str:
        return self.key.rpartition(".")[2]

    @property
    def numbers(self) -> list[float]:
        """Return the values of the axis as numbers. If one of them is not a finite number, return an empty list."""
        try:
            found = [float(value) for value in self.values]
        except ValueError:
            return []
        return found if all(map(math.isfinite, found)) else []

    def is_end(self, value: str) -> bool:
        """Return whether the value is the lowest or the highest value of this axis."""
        numbers = self.numbers
        return len(numbers) > 1 and float(value) in (min(numbers), max(numbers))


@dataclass(frozen=True)
class GridPoint:
    values: Values
    trials: tuple[Experiment, ...]  # One run for each seed.

    @property
    def name(self) -> str:
        """Return the name of the point, which is the name of its trials without the seed."""
        return self.trials[0].name.rpartition("-s")[0]


@dataclass(frozen=True)
class Grid:
    name: str  # The name of the experiment whose settings are varied.
    axes: tuple[Axis, ...]
    points: tuple[GridPoint, ...]

    @property
    def trials(self) -> list[Experiment]:
        return [trial for point in self.points for trial in point.trials]

    def words(self, point: GridPoint) -> str:
        return ", ".join(f"{axis.key} = {value}" for axis, value in zip(self.axes, point.values, strict=True))


def read_axis(text: str) -> Axis:
    key, equals, listed = text.partition("=")
    values = [value.strip() for value in split_values(listed)]
    if not equals or not key.strip() or not all(values):
        raise SettingsError(
            f"--grid {text!r} is not of the form table.key=value,value: for example method.lr=0.02,0.05"
        )
    return checked_axis(key.strip(), values, f"--grid {text!r}")


def checked_axis(key: str, values: Sequence[str], where: str) -> Axis:
    if why := NOT_SEARCHED.get(key.partition(".")[0] if key.startswith("engine.") else key):
        raise SettingsError(f"{where}: {key} cannot be an axis, because {why}")
    if not values:
        raise SettingsError(f"{where}: {key} has no value")
    for before, value in itertools.combinations(values, 2):
        if meant_by(before) == meant_by(value):
            twice = f"{value} twice" if before == value else f"{before} and {value}, which are the same value"
            raise SettingsError(f"{where}: {key} has {twice}")
    return Axis(key, tuple(map(in_one_form, values)))


def meant_by(text: str) -> object:
    """Return the value that TOML reads from the text. A word without quotes is read as a string."""
    return override({}, [f"value={text}"])["value"]


def in_one_form(text: str) -> str:
    """Write equal numbers in the same way. A later sweep then finds the earlier trial with the same number."""
    value = meant_by(text)
    return repr(value) if isinstance(value, float) else text


def split_values(text: str) -> Iterator[str]:
    """Split the text at the commas that are not inside a list, a table or quotes."""
    depth, quote, start = 0, "", 0
    for i, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in "[{":
            depth += 1
        elif letter in "]}":
            depth -= 1
        elif letter == "," and not depth:
            yield text[start:i]
            start = i + 1
    yield text[start:]


def plan_grid(file: Path, axes: Sequence[Axis], seeds: Sequence[int], assignments: Sequence[str]) -> Grid:
    """Plan all trials of a grid. The settings of every trial are checked before the first trial starts.

    If the file does not set the number of processes, the devices of a trial share one process. With
    several processes, the results would be equal bit by bit, but the trial would need more memory and more time
    to start.
    """
    if twice := [axis.key for axis in axes if [other.key for other in axes].count(axis.key) > 1]:
        raise SettingsError(f"--grid names {twice[0]} twice; write all values of this setting in one --grid")
    if same := [seed for seed in seeds if list(seeds).count(seed) > 1]:
        raise SettingsError(
            f"--seeds has the seed {same[0]} twice; the results of the two trials would be the same"
        )
    for key in (text.partition("=")[0].strip() for text in assignments):
        if key == "seed" or key in [axis.key for axis in axes]:
            other = "the seeds are set with --seeds" if key == "seed" else "it is an axis of the grid"
            raise SettingsError(f"--set {key} would change nothing, because {other}; leave out this --set")
    base = read_experiment(file, list(assignments))
    hosted = ["devices.processes=1"] if base.devices.processes == 0 else []
    points = []
    for values in itertools.product(*(axis.values for axis in axes)):
        own = [f"{axis.key}={value}" for axis, value in zip(axes, values, strict=True)]
        varied = read_experiment(file, [*assignments, *hosted, *own], "--grid")
        require_validation(varied, file)
        name = point_name(base.name, axes, values)
        points.append(GridPoint(values, tuple(replace(varied, name=f"{name}-s{s}", seed=s) for s in seeds)))
    return Grid(base.name, tuple(axes), tuple(points))


def require_validation(trial: Experiment, file: Path) -> None:
    if not any(data.validation for data in trial.shards.values()):
        raise SettingsError(
            f"{file} has data.validation = 0, but the best trial is chosen by validation samples; --set "
            "data.validation=0.1 "
            "uses a tenth of the training samples for validation"
        )


def beside_others(grid: Grid, runs: Path) -> Grid:
    """Rename each point whose name belongs to an earlier run with other settings.

    Two sweeps can have trials of the same name, for example if the sweeps differ only in --set. Without a new
    name, the second sweep would rename the folders of the finished runs of the first sweep.
    """

    def is_taken(trial: Experiment) -> bool:
        written = runs / trial.name / "experiment.toml"
        return written.exists() and not same_settings(written, trial)

    def renamed(point: GridPoint) -> GridPoint:
        if not any(map(is_taken, point.trials)):
            return point
        settings = recorded(replace(point.trials[0], name="any", seed=0))
        own = hashlib.sha256(write_toml(settings).encode()).hexdigest()[:8]
        name = f"{point.name[: LONGEST_NAME - 9]}-{own}"
        return replace(point, trials=tuple(replace(t, name=f"{name}-s{t.seed}") for t in point.trials))

    return replace(grid, points=tuple(map(renamed, grid.points)))


def point_name(base: str, axes: Sequence[Axis], values: Values) -> str:
    """Make a name from the point's values, and not from its position in the grid.

    Therefore, if values are added to a grid, the trials that exist already are used.
    """
    plain = [value.strip("\"'") for value in values]
    name = "-".join([base, *(f"{axis.label}-{value}" for axis, value in zip(axes, plain, strict=True))])
    if len(name) <= LONGEST_NAME and re.fullmatch(NAME, name):
        return name
    words = "/".join(f"{axis.key}={value}" for axis, value in zip(axes, values, strict=True))
    return f"{base[: LONGEST_NAME - 9]}-{hashlib.sha256(words.encode()).hexdigest()[:8]}"
