"""Parse the names of trackers: `tensorboard[=FOLDER]`, `mlflow[=URI]`, and trackers of other packages."""

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
    # Only the destinations that the user has named may get data of a run.
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # MLflow would print messages about how it creates its tables.
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    # Standard output belongs to the command.
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # 30 seconds in place of 120, so that a server that does not answer is reported soon.
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    # MLflow's default is seven retries, with longer and longer pauses.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
}


@dataclass(frozen=True, slots=True)
class Destination:
    kind: str
    # For example a folder or an address; "" for the default place, in or next to the run's folder.
    place: str = ""

    def __str__(self) -> str:
        """Return the destination without credentials, because this text is printed and written to files."""
        return f"{self.kind}={without_credentials(self.place)}" if self.place else self.kind

    def open(self, run: Path) -> Tracker:
        """Open the tracker. This imports its package, which takes seconds."""
        if self.kind in KINDS:
            return KINDS[self.kind].open(self.place, run)
        return open_packaged(installed("tracker")[self.kind], self.place, run)


@dataclass(frozen=True, slots=True)
class Kind:
    package: str
    open: Callable[[str, Path], Tracker]  # A function that is called with the place and the run's folder.


def destinations(texts: Iterable[str]) -> list[Destination]:
    """Return the destinations in order, each only once."""
    return list(dict.fromkeys(map(destination, texts)))


def destination(text: str) -> Destination:
    """Parse a destination.

    If the tracker does not exist, the message of a SettingsError lists the known trackers. If its package is
    missing, the message says how to install the package.
    """
    name, has_place, place = text.partition("=")
    if name not in KINDS and name not in (packaged := installed("tracker")):
        raise SettingsError(
            f"no tracker has the name {name[:99]!r}; {there_are(name, sorted({*KINDS, *packaged}))}"
        )
    if has_place and not place:
        raise SettingsError(f"{text!r} has nothing after =; leave out = to use the tracker's default place")
    if name == "mlflow" and place and not place.startswith(("databricks", "uc:")) and "://" not in place:
        raise SettingsError(
            f"{text[:99]!r} is not an address of MLflow; write mlflow=http://HOST:PORT for a server, or "
            "mlflow=sqlite:///FILE for a database"
        )
    package = KINDS[name].package if name in KINDS else ""
    if package and importlib.util.find_spec(package) is None:
        raise SettingsError(f"tracking with {name} needs the package {package}: {install_hint(name)}")
    return Destination(name, place)


def open_tensorboard(place: str, run: Path) -> Tracker:
    from protofleet.lab.trackers.tensorboard import FOLDER, TensorBoard

    return TensorBoard(Path(place).expanduser() / run.absolute().name if place else run / FOLDER)


def open_mlflow(place: str, run: Path) -> Tracker:
    for name, value in QUIETLY.items():
        # MLflow reads these variables when it is imported, so they are set before the import.
        os.environ.setdefault(name, value)
    # Retries are not logged, because the follower reports the result in one line.
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    from protofleet.lab.trackers.mlflow import MLflow, default_address

    runs = run.absolute().parent
    return MLflow(place or default_address(runs), runs)


def open_packaged(one: Packaged, place: str, run: Path) -> Tracker:
    """Open a tracker that another package provides as an entry point.

    The entry point is a class or a function. It is called with the place and the run's folder.
    """
    digest_of(one)  # This raises an error if the package has changed since it was installed.
    tracker = one.load()(place, run)
    if missing := [name for name in METHODS if not callable(getattr(tracker, name, None))]:
        raise PlugInError(
            f"tracker {one.name} of {one} makes an object without the method {missing[0]}(); docs/trackers.md "
            "lists the methods"
        )
    return tracker  # type: ignore[no-any-return]


CREDENTIALS: Final = re.compile(r"://[^/\s]*@")
METHODS: Final = ("begin", "write", "end", "close")
KINDS: Final[Mapping[str, Kind]] = {
    "mlflow": Kind("mlflow", open_mlflow),
    "tensorboard": Kind("tensorboard", open_tensorboard),
}


def without_credentials(text: str) -> str:
    """Remove the credentials between // and @ from an address, or from a text with addresses."""
    return CREDENTIALS.sub("://", text)
