"""Run many experiments in turn: every file with every seed. Runs that have already finished are skipped."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from protofleet.coordinator.observe.summary_file import read_summary
from protofleet.coordinator.server.budget_spent import BudgetSpentError
from protofleet.coordinator.server.diverged import DivergedError
from protofleet.lab.engines.settings import EngineSettings
from protofleet.lab.local.class_check import agreed_names
from protofleet.lab.local.data_check import require_data
from protofleet.lab.local.experiment import Experiment, read_experiment
from protofleet.lab.local.run import ready, run_experiment, same_settings
from protofleet.lab.local.sole_use import InUseError, require_free, require_writable
from protofleet.lab.local.tasks_left import keep_tasks_away
from protofleet.lab.trackers.destinations import Destination
from protofleet.lab.trackers.following import tracking
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.storage.store import DamagedError
from protofleet.runtime.command.errors import RunError, StoppedError
from protofleet.runtime.launcher import Launcher


class Runner(Protocol):
    """A runner of experiments in another way than with processes and a broker."""

    def is_finished(self, experiment: Experiment, runs: Path) -> bool: ...
    def run(self, experiment: Experiment, runs: Path) -> None: ...


@dataclass
class Batch:
    runs: Path
    fresh: bool = False
    launcher: Launcher | None = None
    track: Sequence[Destination] = ()
    runner: Runner | None = None  # If None, each run has processes and a broker.
    failed: dict[str, str] = field(
        default_factory=dict
    )  # The reason of each failed run, by the name of the run.

    def run_all(self, experiments: Sequence[Experiment]) -> int:
        """Run all experiments in turn, and return 1 if a run has failed.

        The settings of all experiments are checked before the first run starts. If a run fails, the next run
        still starts.
        """
        pending = [one for one in experiments if self.fresh or not self.is_finished(one)]
        for experiment in pending:
            require_free(self.runs / experiment.name)
        for experiment in experiments:
            agreed_names(experiment)
        require_data(pending)
        require_writable(self.runs)
        started_at = time.monotonic()
        for i, experiment in enumerate(experiments, 1):
            elapsed = time.monotonic() - started_at
            print(f"--- {i} of {len(experiments)}, {elapsed:.0f} s elapsed: {experiment.name}", flush=True)
            try:
                self.run_one(experiment)
            except (KeyboardInterrupt, StoppedError):
                raise StoppedError(self.stopped_at(experiment, experiments)) from None
        for name, reason in self.failed.items():
            print(f"failed: {name}: {reason}")
        print(f"{len(experiments) - len(self.failed)} of {len(experiments)} runs are finished")
        return 1 if self.failed else 0

    def stopped_at(self, experiment: Experiment, experiments: Sequence[Experiment]) -> str:
        finished = sum(map(self.is_finished, experiments))
        return (
            f"stopped in {experiment.name}; {finished} of {len(experiments)} runs are finished, and the same command "
            f"goes on from here{', without --fresh' if self.fresh else ''}"
        )

    def is_finished(self, experiment: Experiment) -> bool:
        return (self.runner.is_finished if self.runner else is_finished)(experiment, self.runs)

    def conduct(self, experiment: Experiment) -> None:
        if self.runner is not None:
            self.runner.run(experiment, self.runs)
            return
        keep_tasks_away(self.runs / experiment.name)
        with ready(experiment, self.runs, self.fresh):
            run_experiment(experiment, self.runs, self.launcher, self.track)

    def run_one(self, experiment: Experiment) -> None:
        if not self.fresh and self.is_finished(experiment):
            result = outcome(experiment, self.runs)
            with tracking(self.track, self.runs / experiment.name):
                # The run has finished, so there will be no new rounds. The tracker only sends rounds that it has not
                # sent yet.
                pass
            print(f"this run has already ended: {result}")
            if result != "finished":
                self.failed[experiment.name] = f"{result}; --fresh runs it again"
            return
        try:
            self.conduct(experiment)
        except (StoppedError, InUseError):
            raise
        except BudgetSpentError as error:
            print(error)  # The run is finished, and its report and summary are written.
        except (RunError, SettingsError, DivergedError) as error:
            self.failed[experiment.name] = str(error)
            print(f"failed: {error}")


def plan_runs(files: Sequence[Path], seeds: Sequence[int], assignments: list[str]) -> list[Experiment]:
    found: dict[str, Experiment] = {}
    for file in files:
        experiment = read_experiment(file, assignments)
        variants = [replace(experiment, name=f"{experiment.name}-s{s}", seed=s) for s in seeds]
        for run in variants or [experiment]:
            if run.name in found:
                raise SettingsError(
                    f"two of the runs have the name {run.name}; give the experiment in {file} another name"
                )
            found[run.name] = run
    return list(found.values())


def common_engine(runs: Sequence[Experiment]) -> EngineSettings | None:
    """Return the table [engine] of the files, which must be the same in all of them."""
    first = runs[0].engine
    if other := next((run for run in runs if run.engine != first), None):
        raise SettingsError(
            f"{runs[0].name} and {other.name} have different tables [engine], and all runs go to one engine; make "
            "the tables equal"
        )
    return first


def name_of_runs(runs: Sequence[Experiment], files: Sequence[Path]) -> str:
    """Return a name for the files of an engine, which is the same each time the same files and seeds are given."""
    if len(files) == 1:
        return f"run-{runs[0].name.rpartition('-s')[0]}"
    names = sorted(one.name for one in runs)
    return f"run-{names[0][:40]}-{hashlib.sha256('/'.join(names).encode()).hexdigest()[:8]}"


def is_finished(experiment: Experiment, runs: Path) -> bool:
    folder = runs / experiment.name
    if not (folder / "summary.json").exists():
        return False
    return same_settings(folder / "experiment.toml", experiment)


def outcome(experiment: Experiment, runs: Path) -> str:
    try:
        return str(read_summary(runs / experiment.name / "summary.json").get("ended", "finished"))
    except DamagedError as error:
        return f"finished, but {error}"
