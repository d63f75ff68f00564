"""One process at a time has a run's folder: another start of the same run is refused before it touches anything.

The lock is of a file beside the folder, as a folder that is put aside would take it along. The kernel releases it
when the process that holds it ends, however it ends; children do not inherit it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Concatenate, ParamSpec, Protocol, TextIO, TypeVar

from protofleet.deploy.errors import RunError
from protofleet.protocol.settings.reader import SettingsError

P = ParamSpec("P")
R = TypeVar("R")


class InUseError(SettingsError):
    """Another process runs what was to be run."""


class Named(Protocol):
    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=Named)
OfARun = Callable[Concatenate[N, Path, P], R]


def alone(function: OfARun[N, P, R]) -> OfARun[N, P, R]:
    """What is done for (experiment, runs, ...) while no other process has the folder of that run."""

    @functools.wraps(function)
    def call(experiment: N, runs: Path, /, *rest: P.args, **named: P.kwargs) -> R:
        with sole_use(runs / experiment.name):
            return function(experiment, runs, *rest, **named)

    return call


@contextlib.contextmanager
def sole_use(folder: Path) -> Iterator[None]:
    """InUseError where another process has it."""
    with _opened(folder) as file:
        _take(folder, file)
        file.truncate(0)
        file.write(
            f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}"
        )
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def require_free(folder: Path) -> None:
    """InUseError where another process has it now."""
    if lock_of(folder).exists():
        with _opened(folder) as file:
            _take(folder, file)


def require_writable(runs: Path) -> None:
    """RunError where nothing can be made in the folder of all runs: none of many has to find out."""
    probe = runs / f".{os.getpid()}.probe"
    try:
        runs.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise cannot_be_made(runs, error) from None


def cannot_be_made(folder: Path, error: OSError) -> RunError:
    # A file in the place of a folder is EEXIST or ENOTDIR, by how far a path leads.
    words = os.strerror(errno.ENOTDIR) if isinstance(error, FileExistsError) else error.strerror
    return RunError(f"{folder} cannot be made: {words}; --runs names another folder")


def lock_of(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lock")


def _opened(folder: Path) -> TextIO:
    path = lock_of(folder)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a+", encoding="utf-8")
    except OSError as error:
        raise cannot_be_made(folder, error) from None


def _take(folder: Path, file: TextIO) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().strip() or "another process"
        raise InUseError(
            f"{folder} is in use by {holder}: wait until that has ended, or give this run another name, "
            "--set name=..."
        ) from None
    except OSError as error:
        raise RunError(
            f"{folder} cannot be locked: {error.strerror}; --runs names a folder on another disk"
        ) from None
