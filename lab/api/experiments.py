"""Read an experiment that a program gives as a TOML file or as a mapping with the same content."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from protofleet.lab.local.experiment import Experiment, experiment_of_table, read_experiment
from protofleet.protocol.settings.bounds import Seed
from protofleet.protocol.settings.reader import SettingsError, decode


def experiment_from(source: str | Path | Mapping[str, Any], seed: int | None) -> Experiment:
    """Read the experiment. With a seed, the run is called <name>-s<seed>.

    The command `protofleet run --seeds` uses the same names.
    """
    if isinstance(source, Mapping):
        experiment = experiment_of_table({str(key): plain(value) for key, value in source.items()})
    elif isinstance(source, str | Path):
        experiment = read_experiment(Path(source), [])
    else:
        raise SettingsError(
            f"the experiment is {type(source).__name__}, it must be the path of a TOML file or a mapping"
        )
    return experiment if seed is None else with_seed(experiment, seed)


@dataclass(frozen=True)
class Seeded:
    """A table that has only the key `seed`. The seed gets the same checks as in a settings file."""

    seed: Seed


def with_seed(experiment: Experiment, seed: object) -> Experiment:
    number = decode(Seeded, {"seed": plain(seed)}).seed
    return replace(experiment, name=f"{experiment.name}-s{number}", seed=number)


def plain(value: object) -> Any:
    """Convert a value to a value that TOML can contain: NumPy's numbers to Python's, paths to text.

    The result is a copy, because reading an experiment changes its tables.
    """
    match value:
        case Mapping():
            return {str(key): plain(inner) for key, inner in value.items()}
        case list() | tuple():
            return [plain(inner) for inner in value]
        case Path():
            return str(value)
        case bool() | str():
            return value
        case numbers.Integral():
            return int(value)
        case numbers.Real():
            return float(value)
    return value
