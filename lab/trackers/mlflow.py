"""Write a run to MLflow, on a tracking server or in a database.

The numbers of rounds are metrics, settings are parameters, and files are artifacts. The tracker uses its own
MLflow client, because MLflow's global run and address belong to other code in this process.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from protofleet.lab.report.flat_names import Numbers
from protofleet.lab.trackers.tracker import Begun, Ending, Start

EXPERIMENT: Final = "protofleet"
DATABASE: Final = "mlflow.db"
ARTIFACTS: Final = "mlartifacts"
DATABASES: Final = ("sqlite:", "postgresql", "mysql", "mssql")
MOST_METRICS: Final = 1000  # Maximum number of metrics that MLflow accepts in one call.
MOST_PARAMS: Final = 100
LONGEST_VALUE: Final = 6000
# The last metric of a round. If MLflow has this metric for a round, it has the whole round.
LAST_OF_A_ROUND: Final = "seconds"
STATES: Final = {"finished": "FINISHED", "diverged": "FAILED", "stopped": "KILLED"}


def default_address(runs: Path) -> str:
    return f"sqlite:///{runs.absolute() / DATABASE}"


class MLflow:
    def __init__(self, address: str, runs: Path) -> None:
        self._client = MlflowClient(tracking_uri=address)
        # Artifacts are stored next to the runs. Otherwise MLflow with a database would create a folder `mlruns`
        # in the working directory.
        self._artifacts = (runs.absolute() / ARTIFACTS).as_uri() if address.startswith(DATABASES) else None
        self._run, self._last, self._settings = "", 0, frozenset[str]()
        self._of_run: Mapping[str, str] = {}

    def begin(self, run: Start) -> Begun:
        first, self._of_run = self._next_round(run.known_as), run.settings
        if first is None:
            name, tags = run.folder.name, {"protofleet.folder": str(run.folder.absolute())}
            self._run, first = (
                self._client.create_run(self._experiment(), run_name=name, tags=tags).info.run_id,
                1,
            )
            # If the settings cannot be logged now, the error is ignored. The first round will report the same
            # error, and by then the caller has saved the identity of the new MLflow run.
            with contextlib.suppress(MlflowException):
                self._log_settings(run.settings)
        else:
            self._run = run.known_as
            self._settings = frozenset(self._client.get_run(self._run).data.params)
            self._client.update_run(self._run, status="RUNNING")
        self._last = first - 1
        return Begun(self._run, first)

    def _next_round(self, known_as: str) -> int | None:
        """Return the first round that MLflow does not have.

        Return None if MLflow does not have the run, or has deleted it.
        """
        if not known_as:
            return None
        try:
            if self._client.get_run(known_as).info.lifecycle_stage != "active":
                return None
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise
        history = self._client.get_metric_history(known_as, LAST_OF_A_ROUND)
        return max((metric.step for metric in history), default=0) + 1

    def _experiment(self) -> str:
        if found := self._client.get_experiment_by_name(EXPERIMENT):
            return str(found.experiment_id)
        return str(self._client.create_experiment(EXPERIMENT, artifact_location=self._artifacts))

    def write(self, rounds: Sequence[tuple[int, Numbers]]) -> None:
        """Write rounds. Each call to MLflow has as many whole rounds as MLflow accepts.

        Therefore, if the process is killed between two calls, no round is incomplete.
        """
        self._log_settings(self._of_run)
        now, call = int(time.time() * 1000), list[Any]()
        for number, numbers in rounds:
            found = metrics_of(numbers, now, number)
            if len(call) + len(found) > MOST_METRICS:
                self._log(call)
                call = []
            call += found
            self._last = max(self._last, number)
        self._log(call)

    def end(self, ending: Ending) -> None:
        self._log_settings(ending.settings)
        numbers = metrics_of(ending.numbers, int(time.time() * 1000), self._last)
        if not self._has(numbers):
            self._log(numbers)
        for path in ending.files:
            self._client.log_artifact(self._run, str(path))
        for name, text in ending.texts.items():
            self._client.log_text(self._run, text, name)
        self._client.set_terminated(self._run, STATES[ending.state])

    def close(self) -> None:
        """Do nothing, because this tracker keeps nothing open."""

    def _has(self, metrics: Sequence[Any]) -> bool:
        """Return whether MLflow already has these metrics.

        An earlier command may have written the metrics before the command failed, for example because the server
        was killed while it received files. If this command wrote the metrics again, MLflow would store them twice.
        """
        if not metrics:
            return True
        last = metrics[-1]
        history = self._client.get_metric_history(self._run, last.key)
        return any((one.step, one.value) == (last.step, last.value) for one in history)

    def _log(self, metrics: Sequence[Any]) -> None:
        for some in batches(metrics, MOST_METRICS):
            self._client.log_batch(self._run, metrics=some)

    def _log_settings(self, settings: Mapping[str, str]) -> None:
        new = [
            Param(key, value[:LONGEST_VALUE]) for key, value in settings.items() if key not in self._settings
        ]
        for some in batches(new, MOST_PARAMS):
            self._client.log_batch(self._run, params=some)
        self._settings |= {param.key for param in new}


def metrics_of(numbers: Numbers, now: int, step: int) -> list[Any]:
    names = sorted(numbers, key=lambda name: name == LAST_OF_A_ROUND)
    return [Metric(name, float(numbers[name]), now, step) for name in names]


def batches(found: Sequence[Any], most: int) -> Iterator[list[Any]]:
    left = iter(found)
    while some := list(islice(left, most)):
        yield some
