"""Parse the destinations of a run's numbers: `tensorboard[=FOLDER]`, `mlflow[=URI]`, and trackers of packages."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protofleet.lab.trackers.tracker import Tracker
from protofleet.methods.plugins.errors import PlugInError
from protofleet.methods.plugins.packages import Packaged, digest_of, installed
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.settings.suggest import there_are
from protofleet.runtime.installation.extras import install_hint

QUIETLY: Final[Mapping[str, str]] = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # Only the destinations that the owner has named get data of a run.
    "MLFLOW_LOGGING_LEVEL": "WARNING",  # Hides messages about how MLflow makes its tables.
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # stdout belongs to the command.
    # Seconds instead of 120, so that a server that does not answer is reported soon.
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # Instead of seven, each after twice the time.
}


@dataclass(frozen=True, slots=True)
class Destination:
    kind: str
    place: str = ""  # "": the default place of this kind, in or next to the run's folder.

    def __str__(self) -> str:
        """Return the destination without credentials, because it is written to files and printed."""
        return f"{self.kind}={without_credentials(self.place)}" if self.place else self.kind

    def open(self, run: Path) -> Tracker:
        """Open the tracker. This imports its package, which takes seconds."""
        if self.kind in KINDS:
            return KINDS[self.kind].open(self.place, run)
        return open_packaged(installed("tracker")[self.kind], self.place, run)


@dataclass(frozen=True, slots=True)
class Kind:
    package: str
    open: Callable[[str, Path], Tracker]  # Called with the place and the run's folder.


def destinations(texts: Iterable[str]) -> list[Destination]:
    """Return each destination once, in order."""
    return list(dict.fromkeys(map(destination, texts)))


def destination(text: str) -> Destination:
    """Parse a destination.

    The message of a SettingsError lists the trackers that exist, or says how to install a missing package.
    """
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
    from protofleet.lab.trackers.tensorboard import FOLDER, TensorBoard

    return TensorBoard(Path(place).expanduser() / run.absolute().name if place else run / FOLDER)


def open_mlflow(place: str, run: Path) -> Tracker:
    for name, value in QUIETLY.items():
        os.environ.setdefault(name, value)  # MLflow reads them when it is imported.
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # One line of the follower reports the result.
    from protofleet.lab.trackers.mlflow import MLflow, default_address

    runs = run.absolute().parent
    return MLflow(place or default_address(runs), runs)


def open_packaged(one: Packaged, place: str, run: Path) -> Tracker:
    """Open the tracker that an entry point of a package names.

    The entry point is a class or a function that is called with the place and the run's folder.
    """
    digest_of(one)  # This raises an error if the package has changed since it was installed.
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
    """Remove the credentials between // and @ from an address, or from a text that may contain an address."""
    return CREDENTIALS.sub("://", text)
