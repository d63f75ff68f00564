"""Where a run's numbers shall go: `tensorboard[=FOLDER]`, `mlflow[=URI]`, and what packages bring."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protofleet.deploy.extras import install_hint
from protofleet.deploy.trackers.tracker import Tracker
from protofleet.methods.plugins.errors import PlugInError
from protofleet.methods.plugins.packages import Packaged, digest_of, installed
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.settings.suggest import there_are

QUIETLY: Final[Mapping[str, str]] = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # nobody is told of a run but whom its owner has named
    "MLFLOW_LOGGING_LEVEL": "WARNING",  # not how it makes its tables
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # stdout is the command's own
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",  # seconds, of 120: a server that says nothing is soon said
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
        if self.kind in KINDS:
            return KINDS[self.kind].open(self.place, run)
        return open_packaged(installed("tracker")[self.kind], self.place, run)


@dataclass(frozen=True, slots=True)
class Kind:
    package: str
    open: Callable[[str, Path], Tracker]  # the place, the run's folder


def destinations(texts: Iterable[str]) -> list[Destination]:
    """Each once, in order."""
    return list(dict.fromkeys(map(destination, texts)))


def destination(text: str) -> Destination:
    """SettingsError says what there is, and how what is missing is installed."""
    name, has_place, place = text.partition("=")
    if name not in KINDS and name not in (packaged := installed("tracker")):
        raise SettingsError(f"a tracker is {name[:99]!r}; {there_are(name, sorted({*KINDS, *packaged}))}")
    if has_place and not place:
        raise SettingsError(f"{text!r} names no place; without = it is the tracker's own")
    if name == "mlflow" and place and not place.startswith(("databricks", "uc:")) and "://" not in place:
        raise SettingsError(
            f"{text[:99]!r} is no address of MLflow's; a server is mlflow=http://HOST:PORT, and a database "
            "mlflow=sqlite:///FILE"
        )
    package = KINDS[name].package if name in KINDS else ""
    if package and importlib.util.find_spec(package) is None:
        raise SettingsError(f"tracking with {name} takes the package {package}: {install_hint(name)}")
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


def open_packaged(one: Packaged, place: str, run: Path) -> Tracker:
    """By what its entry point names: a class or a function that is called with the place and the run's folder."""
    digest_of(one)  # raises where it is not as it was installed
    tracker = one.load()(place, run)
    if missing := [name for name in METHODS if not callable(getattr(tracker, name, None))]:
        raise PlugInError(
            f"tracker {one.name} of {one} gives what has no {missing[0]}(); docs/trackers.md has them"
        )
    return tracker  # type: ignore[no-any-return]


CREDENTIALS: Final = re.compile(r"://[^/\s]*@")
METHODS: Final = ("begin", "write", "end", "close")
KINDS: Final[Mapping[str, Kind]] = {
    "mlflow": Kind("mlflow", open_mlflow),
    "tensorboard": Kind("tensorboard", open_tensorboard),
}


def without_credentials(text: str) -> str:
    """Of an address, or of words that may hold one: what stands between its // and its @."""
    return CREDENTIALS.sub("://", text)
