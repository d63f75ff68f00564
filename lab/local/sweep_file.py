"""Read the grid of settings that `protofleet sweep` tries.

The grid is given on the command line, in a sweep file that names an experiment, or in both.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from protofleet.lab.engines.settings import EngineSettings
from protofleet.lab.local.grid import Axis, Grid, checked_axis, plan_grid
from protofleet.protocol.settings.bounds import Seed
from protofleet.protocol.settings.reader import SettingsError, decode, read_toml

Choose = Literal["validation", "best-validation"]


@dataclass(frozen=True)
class SweepFile:
    """The file of a sweep. The sweeps that make a figure of a paper are in `experiments/sweeps`."""

    experiment: str
    """Path of the experiment's file, relative to the sweep's file."""
    grid: dict[str, list[Any]]
    """List of the values to try for each setting, by the setting's path in quotes, such as `"method.lr"`."""
    seeds: list[Seed] = field(default_factory=lambda: [1])
    """Seeds with which each combination of values is run."""
    set: list[str] = field(default_factory=list)
    """Changes to the settings of all trials, each in the form of `--set`."""
    choose: Choose = "validation"
    """Accuracy by which the best trial is chosen, `validation` (after the last round) or `best-validation`
    (of the best round).
    """
    engine: EngineSettings | None = None
    """Engine that runs the trials; if left out, the table [engine] of the experiment is used."""


@dataclass(frozen=True)
class Wish:
    """The options of the command line. If an option is None or empty, the value in the sweep file is used."""

    grid: Sequence[Axis] = ()
    seeds: Sequence[int] = ()
    set: Sequence[str] = ()
    choose: Choose | None = None


def engine_of(path: Path, grid: Grid) -> EngineSettings:
    """Return the engine that the sweep file names, or else the experiment, or else this machine."""
    table = read_toml(path)
    own = decode(SweepFile, table).engine if "grid" in table else None
    return own or grid.trials[0].engine or EngineSettings()


def planned(path: Path, wish: Wish) -> tuple[Grid, Choose]:
    """Plan the grid of an experiment's file or of a sweep file.

    If the command line and the file have the same axis, the values of the command line are used.
    """
    table = read_toml(path)
    if "grid" not in table:
        if not wish.grid:
            raise SettingsError(
                f"{path} has no table [grid], and no --grid is given; give one with --grid, for example --grid "
                "method.lr=0.02,0.05"
            )
        return plan_grid(path, wish.grid, wish.seeds or [1], wish.set), wish.choose or "validation"
    for key, values in table["grid"].items() if isinstance(table["grid"], dict) else ():
        if isinstance(values, dict):
            inner = next(iter(values), "lr")
            raise SettingsError(f'{path}: quote the settings of [grid], as in "{key}.{inner}" = [...]')
    try:
        found = decode(SweepFile, table)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from None
    own = [
        checked_axis(key, [json.dumps(v) for v in values], str(path)) for key, values in found.grid.items()
    ]
    said, keys = {axis.key: axis for axis in wish.grid}, [axis.key for axis in own]
    # The order of the file's axes is kept, because the names of trials depend on the order.
    axes = [said.get(axis.key, axis) for axis in own] + [axis for axis in wish.grid if axis.key not in keys]
    seeds = wish.seeds or found.seeds
    if not axes or not seeds:
        raise SettingsError(
            f"{path}: {'[grid]' if not axes else 'seeds'} is empty, so there is nothing to try"
        )
    grid = plan_grid(path.parent / found.experiment, axes, seeds, [*found.set, *wish.set])
    return replace(grid, name=path.stem), wish.choose or found.choose
