"""Find the earlier runs in a stack's folder.

A new run with other settings must not end or overwrite an earlier run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from protofleet.coordinator.service_settings import is_service
from protofleet.deploy.stack.layout import Stack
from protofleet.lab.local.experiment import Experiment
from protofleet.lab.local.run import renamed, same_settings
from protofleet.protocol.settings.reader import SettingsError, decode, read_toml
from protofleet.protocol.wire.names import COORDINATOR

EXPERIMENT_FILE: Final = "experiment.toml"


def earlier_run(stack: Stack, fresh: bool) -> Path | None:
    """Return the folder of an earlier run that must be put aside before the new run begins, or None.

    Only an earlier run with the name of the new run is put aside. Raise SettingsError if the earlier run is
    unfinished and has other settings, unless `fresh` is true. An unfinished run may continue with another budget.
    """
    if stack.queue:
        return None  # The coordinator goes on with the runs in its queue.
    written, unfinished = written_settings(stack), not (stack.run_folder / "summary.json").exists()
    if not stack.run_folder.exists() or written is None:
        return None
    if not fresh and same_settings(written, stack.experiment, but_budget=unfinished):
        return None
    if not fresh and unfinished:
        raise SettingsError(
            f"{stack.run_folder} holds an unfinished run with other settings; to continue that run, use `make "
            "up` with its settings; FRESH=1 renames its results and begins a new run; ARGS='--set name=NAME' gives "
            "the new run another name"
        )
    return stack.run_folder


def has_other_settings(stack: Stack, but_budget: bool = False) -> bool:
    """Return whether the containers of this folder were started earlier with other settings.

    With `but_budget`, another budget does not count, because the run continues with it.
    """
    if has_queue(stack) != stack.queue:
        return True
    last = stack.folder / EXPERIMENT_FILE
    return last.exists() and not same_settings(last, stack.experiment, but_budget)


def has_queue(stack: Stack) -> bool:
    """Return whether the containers of this folder were started with a queue of runs."""
    path = stack.settings_file(COORDINATOR)
    return is_service(read_toml(path)) if path.exists() else stack.queue


def unfinished_run(stack: Stack) -> Path | None:
    """Return the folder of the stack's last run, or None if this run has ended or there is no run.

    A coordinator with a queue does not end a run: the run goes on when it is submitted.
    """
    if stack.queue or has_queue(stack):
        return None
    last = stack.folder / EXPERIMENT_FILE
    run = stack.run_folder.parent / name if last.exists() and (name := _name_in(last)) else None
    return run if run and run.exists() and not (run / "summary.json").exists() else None


def put_aside(run: Path) -> None:
    print(f"stack: the results of the earlier run are now in {renamed(run)}; keys and metrics are kept")


def require_same_run(stack: Stack) -> None:
    if earlier := earlier_run(stack, fresh=False):
        raise SettingsError(f"{earlier} holds a run with other settings; rename this folder first")


def written_settings(stack: Stack) -> Path | None:
    """Return the file with the settings of the earlier run with this name; None if there is no such file.

    Earlier versions stored only the settings of the last run, and only in the folder of the stack.
    """
    own, last = stack.run_folder / EXPERIMENT_FILE, stack.folder / EXPERIMENT_FILE
    if own.exists():
        return own
    return last if last.exists() and _name_in(last) == stack.experiment.name else None


def _name_in(written: Path) -> str:
    try:
        return decode(Experiment, read_toml(written)).name
    except SettingsError:
        return ""
