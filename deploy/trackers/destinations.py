"""Where a run's numbers shall go: `tensorboard`, `tensorboard=FOLDER`, `mlflow`, `mlflow=URI`."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from protofleet.deploy.trackers.tracker import Tracker
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.settings.suggest import there_are

QUIETLY: Final[Mapping[str, str]] = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # nobody is told of a run but whom its owner has named
    "MLFLOW_LOGGING_LEVEL": "WARNING",  # not how it makes its tables
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # of seven, each after twice the time
}


@dataclass(frozen=True, slots=True)
class Destination:
    kind: str
    place: str = ""  # "": the kind's own, in or beside the run's folder

    def __str__(self) -> str:
        """Without what opens it: this is written into files and said."""
        return f"{self.kind}={without_credentials(self.place)}" if self.place else self.kind

    def open(self, run: Path) -> Tracker:
        """Imports the package, which takes seconds."""
        return KINDS[self.kind].open(self.place, run)


@dataclass(frozen=True, slots=True)
class Kind:
    package: str
    open: Callable[[str, Path], Tracker]  # the place, the run's folder


def destination(text: str) -> Destination:
    """SettingsError says what there is, and how what is missing is installed."""
    name, has_place, place = text.partition("=")
    if name not in KINDS:
        raise SettingsError(f"a tracker is {name[:99]!r}; {there_are(name, KINDS)}")
    if has_place and not place:
        raise SettingsError(f"{text!r} names no place; without = it is the tracker's own")
    package = KINDS[name].package
    if importlib.util.find_spec(package) is None:
        raise SettingsError(
            f"tracking with {name} takes the package {package}: pip install 'protofleet[{name}]'"
        )
    return Destination(name, place)


def open_tensorboard(place: str, run: Path) -> Tracker:
    from protofleet.deploy.trackers.tensorboard import FOLDER, TensorBoard

    return TensorBoard(Path(place).expanduser() / run.absolute().name if place else run / FOLDER)


def open_mlflow(place: str, run: Path) -> Tracker:
    for name, value in QUIETLY.items():
        os.environ.setdefault(name, value)  # read when it is imported
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # one line of ours says what came of it
    from protofleet.deploy.trackers.mlflow import MLflow, default_address

    runs = run.absolute().parent
    return MLflow(place or default_address(runs), runs)


KINDS: Final[Mapping[str, Kind]] = {
    "mlflow": Kind("mlflow", open_mlflow),
    "tensorboard": Kind("tensorboard", open_tensorboard),
}


def without_credentials(place: str) -> str:
    parts = urlsplit(place)
    return (
        urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])) if "@" in parts.netloc else place
    )
