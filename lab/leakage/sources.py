"""Find the answers of a run: kept by its coordinator, or made again from its experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from protofleet.lab.leakage.kept_answers import kept_folder, read_kept
from protofleet.lab.leakage.observed import Observed
from protofleet.lab.leakage.repeated import FIRST_AND_LAST, Repeated, repeated
from protofleet.lab.local.experiment import Experiment, experiment_table
from protofleet.lab.report.finished_run import read_run
from protofleet.protocol.settings.reader import SettingsError, decode

WAYS_OUT: Final = (
    'set [keep] answers = [1, "last"] before a run, repeat the experiment with --replay, or measure on a device with '
    "`protofleet leakage mine device.toml`"
)


def observed_in(run: Path) -> Observed:
    """Return the kept answers of a run; raise SettingsError with the ways out if there are none."""
    if not run.is_dir():
        raise SettingsError(f"{run} does not exist; name the folder of a run, for example runs/demo")
    if (folder := kept_folder(run)) is None:
        raise SettingsError(f"{run} has no kept answers: {WAYS_OUT}")
    return read_kept(folder)


def replayed(run: Path, number: int | None = None) -> tuple[Observed, str]:
    """Repeat the experiment of a run, and return its answers and whether the run had the same accuracies.

    The answers of round `number` are kept, or of the first and the last round.
    """
    path = run / "experiment.toml"
    if not path.is_file():
        raise SettingsError(
            f"{path} does not exist, so there is no experiment to repeat; name the folder of a run"
        )
    experiment = decode(Experiment, experiment_table(path))
    if number is not None and number > experiment.rounds:
        raise SettingsError(
            f"--round is {number}, and {experiment.name} has {experiment.rounds} rounds; give a number from 1 to "
            f"{experiment.rounds}"
        )
    found = repeated(experiment, FIRST_AND_LAST if number is None else {number})
    return found.observed, comparison(run, experiment, found)


def comparison(run: Path, experiment: Experiment, found: Repeated) -> str:
    """Return in words whether the repeated run has the accuracies of the run, to the last digit."""
    if not (run / "summary.json").exists():
        return "the run has not finished, so the repeated run was not compared with it"
    view = experiment.plan.variant.reports
    lines = {line["round"]: line["accuracy"].get(view, {}) for line in read_run(run).rounds}
    compared = [one for one in found.rounds if one.accuracy.get(view) and lines.get(one.number)]
    other = [
        one.number for one in compared
        if any(abs(value - lines[one.number].get(experiment.shards[device].domain or device, value)) > 1e-6
               for device, value in one.accuracy[view].items())
    ]  # fmt: skip
    if not compared:
        return "the run has no accuracies with which the repeated run could be compared"
    if other:
        return (
            f"the repeated run differs from the run in round {other[0]} ({len(other)} of {len(compared)} rounds); "
            "the figures are of the repeated run"
        )
    return f"the repeated run has the accuracies of the run in {len(compared)} of {len(compared)} rounds"
