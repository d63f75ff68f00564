"""The settings of a coordinator that stays up, and the settings of the runs that are submitted to it.

The file of such a coordinator has the keys of a coordinator's file without the keys of a run. An experiment has only
the keys of a run. Both together are the settings of a coordinator with one run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from protofleet.coordinator.config import CoordinatorSettings
from protofleet.coordinator.method_settings import Layer, require_own_settings
from protofleet.methods.plugins.paths import TABLES
from protofleet.protocol.settings.bounds import Slots
from protofleet.protocol.settings.reader import SettingsError, Table, decode, encode, parse_toml
from protofleet.protocol.settings.suggest import there_are

# Keys that name a run. A file without all of them is the file of a coordinator that stays up.
OF_A_RUN: Final = ("name", "rounds", "method")
# Keys of the coordinator and of its machine.
OF_THE_SERVICE: Final = frozenset({
    "federation", "folder", "plugins", "limits", "broker", "enrolled", "key", "devices", "security", "threads",
    "metrics_port", "metrics_host", "page_port", "page_host", "page_cert", "page_key", "watchdog_seconds",
    "patience_seconds", "broker_words",
})  # fmt: skip
OF_AN_EXPERIMENT: Final = frozenset({one.name for one in fields(CoordinatorSettings)}) - OF_THE_SERVICE
# A run that is never conducted. It lets the settings of the service be checked before the first run.
NO_RUN: Final[Mapping[str, Any]] = {"name": "none", "rounds": 1, "classes": 2, "method": {"name": "fedavg"}}
MOST_EXPERIMENT: Final = 65_536  # Largest number of bytes of an experiment.


def is_service(table: Mapping[str, Any]) -> bool:
    """Return whether a settings file names no run, so that its coordinator conducts submitted runs."""
    return not any(key in table for key in OF_A_RUN)


@dataclass(frozen=True)
class QueueSettings:
    """The settings that only a coordinator of submitted runs has."""

    slots: Slots = 2
    """Number of submitted runs that are active at the same time."""


OF_THE_QUEUE: Final = frozenset(one.name for one in fields(QueueSettings))
KNOWN: Final = OF_AN_EXPERIMENT | OF_THE_SERVICE | OF_THE_QUEUE | {"data", "base"}


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """The settings of a coordinator that conducts submitted runs."""

    own: CoordinatorSettings
    """All settings that do not belong to a run; the keys of a run have the values of NO_RUN."""
    table: Table
    """The keys of `own` in the file."""
    queue: QueueSettings = QueueSettings()

    @classmethod
    def of(cls, table: Table) -> ServiceSettings:
        if wrong := sorted(OF_AN_EXPERIMENT & table.keys()):
            raise SettingsError(
                f"{wrong[0]} belongs to a run, and this file names no run (name, rounds, method); set {wrong[0]} in "
                "the experiments that you submit, or name the run here"
            )
        queue = decode(QueueSettings, {key: table[key] for key in OF_THE_QUEUE & table.keys()})
        own = {key: value for key, value in table.items() if key not in OF_THE_QUEUE}
        return cls(decode(CoordinatorSettings, {**NO_RUN, **own}), own, queue)

    @property
    def folder(self) -> Path:
        return Path(self.own.folder)

    def encoded(self) -> Table:
        """Return the keys of the settings file, without the keys of a run."""
        return {**without_run(encode(self.own))[0], **encode(self.queue)}

    def of_run(self, name: str, experiment: str) -> CoordinatorSettings:
        """Return the settings of a submitted run; raise SettingsError if they are wrong."""
        table = experiment_in(experiment) | {"name": name}
        require_own_settings([Layer("the experiment", table)], Path("the experiment"), ())
        return decode(CoordinatorSettings, {**self.table, **table})


def without_run(table: Table) -> tuple[Table, Table]:
    """Divide the settings of a coordinator of one run into those of a coordinator with a queue, and the run."""
    service = {key: value for key, value in table.items() if key in OF_THE_SERVICE}
    return service, {key: value for key, value in table.items() if key in OF_AN_EXPERIMENT}


def experiment_in(text: str) -> Table:
    """Return the settings of an experiment; raise SettingsError if it holds more than the settings of a run."""
    if (size := len(text.encode())) > MOST_EXPERIMENT:
        raise SettingsError(f"the experiment has {size:,} bytes; the limit is {MOST_EXPERIMENT:,}")
    table = parse_toml(text.encode(), "the experiment")
    for key in table:
        if key not in KNOWN:
            keys = there_are(key, sorted(OF_AN_EXPERIMENT))
            raise SettingsError(f"{key} is not a setting of an experiment; {keys}")
        if key in OF_THE_SERVICE | OF_THE_QUEUE or key in ("data", "base"):
            raise SettingsError(
                f"{key} is not a setting of a submitted experiment, because it belongs to the machine of a party; "
                f"leave out {key}"
            )
    for key in TABLES:
        if isinstance(part := table.get(key), dict) and part.get("file"):
            raise SettingsError(
                f"{key}.file is a path, and a submitted experiment has no paths; set plugins.files in the "
                f"coordinator's file, and {key}.name here"
            )
    return table
