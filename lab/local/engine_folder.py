"""Keep the files that a command and its tasks share: the trials, the list of tasks, and the failures of each task.

runs/sweeps/<name>/trials/<trial>.toml   each trial as its run will record it
runs/sweeps/<name>/engine/list           a line for each task, with the names of its files
runs/sweeps/<name>/engine/<task>.failed  the reason of each trial of the task that has failed
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from protofleet.lab.local.experiment import Experiment, recorded
from protofleet.protocol.settings.reader import SettingsError, write_toml
from protofleet.protocol.storage.disk import Disk


@dataclass(frozen=True)
class EngineFolder:
    root: Path  # The absolute path of runs/sweeps/<name>.

    @property
    def trials(self) -> Path:
        return self.root / "trials"

    @property
    def engine(self) -> Path:
        return self.root / "engine"

    @property
    def list(self) -> Path:
        return self.engine / "list"

    def make(self) -> None:
        for folder in (self.trials, self.engine):
            folder.mkdir(parents=True, exist_ok=True)

    def write_trials(self, trials: Sequence[Experiment]) -> None:
        disk = Disk()
        for trial in trials:
            trial.own_plugins.keep(self.trials)
            disk.replace(self.trials / f"{trial.name}.toml", write_toml(recorded(trial)).encode())

    def write_list(self, trials: Sequence[Experiment], pack: int) -> int:
        """Divide the trials among tasks, and return the number of tasks. Failures of earlier tasks are removed."""
        for path in self.engine.glob("*.failed"):
            path.unlink(missing_ok=True)
        names = [f"{trial.name}.toml" for trial in trials]
        lines = [" ".join(names[i : i + pack]) + "\n" for i in range(0, len(names), pack)]
        Disk().replace(self.list, "".join(lines).encode())
        return len(lines)

    def tasks(self) -> Sequence[Sequence[str]]:
        """Return the names of the trials of each task."""
        try:
            lines = self.list.read_text().splitlines()
        except OSError:
            return []
        return [[name.removesuffix(".toml") for name in line.split()] for line in lines]

    def failures(self) -> Mapping[str, str]:
        """Return the reason of each trial that has failed in a task."""
        found: dict[str, str] = {}
        for path in sorted(self.engine.glob("*.failed")):
            try:
                found |= {str(name): str(reason) for name, reason in json.loads(path.read_text()).items()}
            except (OSError, ValueError, AttributeError):
                continue  # The task is just writing or removing the file; the next look sees it.
        return found


@dataclass(frozen=True)
class TaskFiles:
    """The files of one task, as the task sees them."""

    list: Path
    index: int

    def files(self) -> Sequence[Path]:
        try:
            lines = self.list.read_text().splitlines()
        except OSError as error:
            raise SettingsError(f"{self.list} cannot be read: {error.strerror}") from None
        if self.index >= len(lines):
            raise SettingsError(f"{self.list} has {len(lines)} tasks, and there is no task {self.index}")
        folder = self.list.parent.parent / "trials"
        return [folder / name for name in lines[self.index].split()]

    def write_failures(self, failed: Mapping[str, str]) -> None:
        path = self.list.with_name(f"{self.index}.failed")
        if failed:
            Disk().replace(path, json.dumps(dict(failed), allow_nan=False).encode())
        else:
            path.unlink(missing_ok=True)
