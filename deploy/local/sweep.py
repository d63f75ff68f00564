"""Many runs, one after the other: every file with every seed. Finished runs are skipped."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from protofleet.coordinator.observe.summary_file import read_summary
from protofleet.coordinator.server.diverged import DivergedError
from protofleet.deploy.errors import RunError
from protofleet.deploy.local.class_check import agreed_names
from protofleet.deploy.local.experiment import Experiment, read_experiment
from protofleet.deploy.local.run import claim_folder, run_experiment
from protofleet.protocol.settings.reader import SettingsError, encode, write_toml
from protofleet.protocol.storage.store import DamagedError


@dataclass
class Sweep:
    runs: Path
    fresh: bool = False
    failed: dict[str, str] = field(default_factory=dict)  # run -> why

    def run(self, files: Sequence[Path], seeds: Sequence[int], assignments: list[str]) -> int:
        """Mistakes in files are found before the first run starts; a run that fails does not stop the others."""
        planned = plan_runs(files, seeds, assignments)
        for experiment in planned:
            agreed_names(experiment)
        started_at = time.monotonic()
        for i, experiment in enumerate(planned, 1):
            elapsed = time.monotonic() - started_at
            print(f"--- {i} of {len(planned)}, {elapsed:.0f} s elapsed: {experiment.name}", flush=True)
            self.one(experiment)
        for name, why in self.failed.items():
            print(f"failed: {name}: {why}")
        done = len(planned) - len(self.failed)
        print(f"{done} of {len(planned)} runs are finished; protofleet compare puts them side by side")
        return 1 if self.failed else 0

    def one(self, experiment: Experiment) -> None:
        if not self.fresh and finished(experiment, self.runs):
            ended = outcome(experiment, self.runs)
            print(f"{ended} already")
            if ended != "finished":
                self.failed[experiment.name] = f"{ended}; --fresh runs it again"
            return
        try:
            claim_folder(experiment, self.runs, self.fresh)
            run_experiment(experiment, self.runs)
        except (RunError, SettingsError, DivergedError) as error:
            self.failed[experiment.name] = str(error)
            print(f"failed: {error}")


def plan_runs(files: Sequence[Path], seeds: Sequence[int], assignments: list[str]) -> list[Experiment]:
    found: dict[str, Experiment] = {}
    for file in files:
        experiment = read_experiment(file, assignments)
        for named in [replace(experiment, name=f"{experiment.name}-s{s}", seed=s) for s in seeds] or [
            experiment
        ]:
            if named.name in found:
                raise SettingsError(f"two of the runs are called {named.name}; give {file} another name")
            found[named.name] = named
    return list(found.values())


def finished(experiment: Experiment, runs: Path) -> bool:
    folder = runs / experiment.name
    if not (folder / "summary.json").exists():
        return False
    return (folder / "experiment.toml").read_text() == write_toml(encode(experiment))


def outcome(experiment: Experiment, runs: Path) -> str:
    try:
        return str(read_summary(runs / experiment.name / "summary.json").get("ended", "finished"))
    except DamagedError as error:
        return f"finished, but {error}"
