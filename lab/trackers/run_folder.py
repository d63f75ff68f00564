"""Read the data that a tracker needs from a run's folder, except the records of the rounds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from protofleet.coordinator.observe.rounds_file import finite, read_rounds
from protofleet.coordinator.observe.summary_file import read_summary
from protofleet.lab.report.flat_names import part, summary_numbers
from protofleet.lab.trackers.tracker import Ending, State
from protofleet.protocol.settings.reader import SettingsError, read_toml, write_toml

ROUNDS: Final = "rounds.jsonl"
SUMMARY: Final = "summary.json"
EXPERIMENT: Final = "experiment.toml"
TRIALS: Final = "trials.json"  # File in runs/sweeps/NAME that lists the runs of a sweep.
REPORT: Final = "report.html"
FILES: Final = (REPORT, ROUNDS, SUMMARY)
SECRETS: Final = frozenset({"username", "password"})  # Settings of a broker that are not sent to a tracker.
# The run of a service has no experiment.toml. These settings are read from the run's summary.
OF_A_SUMMARY: Final = {"method": "method.name", "network": "network.name", "rounds": "rounds", "seed": "seed"}


def runs_of(folder: Path) -> list[Path]:
    """Return those runs of a sweep that have begun. `folder` is the folder of the sweep.

    If `folder` is not the folder of a sweep, return only `folder` itself.
    """
    try:
        trials = json.loads((folder / TRIALS).read_bytes())["trials"]
        names = [str(name) for trial in trials for name in trial["runs"]]
    except (OSError, ValueError, LookupError, TypeError):
        return [folder]
    begun = [run for name in names if ((run := folder.absolute().parents[1] / name) / ROUNDS).exists()]
    if not begun:
        raise SettingsError(
            f"{folder} is the folder of a sweep, but none of its runs is in {folder.absolute().parents[1]}"
        )
    return begun


def require_run(run: Path, *, may_begin: bool) -> None:
    if not run.is_dir():
        raise SettingsError(f"{run} is not a folder; name the folder of a run, for example runs/demo")
    if not may_begin and not (run / ROUNDS).exists():
        raise SettingsError(
            f"{run} has no {ROUNDS}, because no round has ended there; --follow waits for the first round"
        )


def is_over(run: Path) -> bool:
    return (run / SUMMARY).exists()


def last_round(run: Path) -> int:
    return max((line["round"] for line in read_rounds(run / ROUNDS)), default=0)


def settings_of(run: Path) -> dict[str, str]:
    """Return the settings of the experiment by their dotted names; empty if they cannot be read."""
    return dict(dotted(experiment_of(run)))


def ending_of(run: Path) -> Ending:
    if not is_over(run):
        return Ending("stopped", settings_of(run), {}, (), {})
    summary = finite(read_summary(run / SUMMARY))
    state: State = "finished" if summary.get("ended", "finished") == "finished" else "diverged"
    experiment = experiment_of(run)
    settings = dict(dotted(experiment)) or {
        name: str(summary[key]) for key, name in OF_A_SUMMARY.items() if key in summary
    }
    files = [path for name in FILES if (path := run / name).exists()]
    texts = {EXPERIMENT: write_toml(experiment)} if experiment else {}
    return Ending(state, settings, summary_numbers(summary), files, texts)


def experiment_of(run: Path) -> dict[str, Any]:
    """Return the settings of the experiment without the credentials of its broker.

    People who may read the tracker are not always allowed to read the run's folder.
    """
    try:
        return public(read_toml(run / EXPERIMENT)) if (run / EXPERIMENT).exists() else {}
    except SettingsError:
        return {}


def public(table: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: public(value) if isinstance(value, dict) else value
        for key, value in table.items()
        if key not in SECRETS
    }


def dotted(table: Mapping[str, Any], name: str = "") -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        path = f"{name}.{part(key)}" if name else part(key)
        if isinstance(value, dict):
            yield from dotted(value, path)
        else:
            yield path, str(value)
