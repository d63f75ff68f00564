"""Implement `protofleet trials`, which a task of an engine runs: the trials of one line of a list, one after another.

An engine may run a task again, so a finished trial is left alone. `protofleet run` would rename its folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from protofleet.lab.local.batch import Batch, is_finished, plan_runs
from protofleet.lab.local.data_check import require_data
from protofleet.lab.local.engine_folder import TaskFiles
from protofleet.lab.local.experiment import Experiment
from protofleet.lab.local.sole_use import InUseError
from protofleet.protocol.settings.reader import SettingsError
from protofleet.runtime.command.errors import RunError, StoppedError
from protofleet.runtime.installation.version import installed_version
from protofleet.runtime.launcher import Launcher


@dataclass
class TrialsTask:
    files: TaskFiles
    runs: Path
    version: str = ""  # The version of protofleet that must run here; "" if any version may.
    launcher: Launcher | None = None

    def run(self) -> int:
        """Run the trials of the task, and return 1 if a trial has failed."""
        self.files.write_failures({})
        paths = self.files.files()
        if self.version and self.version != installed_version():
            reason = (
                f"this node has protofleet {installed_version()}, and the command has {self.version}; install the "
                "same version on all nodes"
            )
            self.files.write_failures({path.stem: reason for path in paths})
            raise SettingsError(reason)
        batch = Batch(self.runs, launcher=self.launcher)
        for i, trial in enumerate(trials := plan_runs(paths, [], []), 1):
            print(f"--- {i} of {len(trials)}: {trial.name}", flush=True)
            try:
                self.run_one(batch, trial)
            except InUseError as error:
                print(f"in use elsewhere: {error}", flush=True)
            except (KeyboardInterrupt, StoppedError):
                raise StoppedError(
                    f"stopped in {trial.name}; it goes on from here when it is submitted again"
                ) from None
            self.files.write_failures(batch.failed)
        return 1 if batch.failed else 0

    def run_one(self, batch: Batch, trial: Experiment) -> None:
        try:
            if not is_finished(trial, self.runs):
                require_data([trial])
            batch.run_one(trial)
        except (InUseError, StoppedError):
            raise
        except (RunError, SettingsError) as error:
            batch.failed[trial.name] = str(error)
            print(f"failed: {error}", flush=True)
