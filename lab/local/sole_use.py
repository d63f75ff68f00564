"""Let only one process use a run's folder. A second process is refused before it changes anything.

The lock is on a file next to the folder, because the folder may be renamed. The kernel releases the lock when the
process that holds the lock ends, even after a crash. Child processes do not inherit the lock.
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

from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.storage.disk import FULL
from protofleet.runtime.command.errors import RunError

P = ParamSpec("P")
R = TypeVar("R")


class InUseError(SettingsError):
    """The error for a run that another process already runs."""


class Named(Protocol):
    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=Named)
OfARun = Callable[Concatenate[N, Path, P], R]


def alone(function: OfARun[N, P, R]) -> OfARun[N, P, R]:
    """Return the function with a lock: during a call, no other process can use the run's folder.

    The function's first arguments are an experiment and the folder of all runs.
    """

    @functools.wraps(function)
    def call(experiment: N, runs: Path, /, *rest: P.args, **named: P.kwargs) -> R:
        with sole_use(runs / experiment.name):
            return function(experiment, runs, *rest, **named)

    return call


@contextlib.contextmanager
def sole_use(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder during the block. If another process has the lock, InUseError is raised."""
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
    """Raise InUseError if another process holds the lock at this moment."""
    if lock_of(folder).exists():
        with _opened(folder) as file:
            _take(folder, file)


def require_writable(runs: Path) -> None:
    """Raise an error if no file can be created in the folder of all runs.

    Without this check, each of many runs would report the same error.
    """
    probe = runs / f".{os.getpid()}.probe"
    try:
        runs.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise cannot_be_made(runs, error) from None


def cannot_be_made(folder: Path, error: OSError) -> RunError | SettingsError:
    """Return the error for a folder of results; a full disk is not a mistake in the command."""
    # If a part of the path is a file, the error is EEXIST for the last part of the path and ENOTDIR for any other
    # part. The user gets the message of ENOTDIR in both cases.
    words = os.strerror(errno.ENOTDIR) if isinstance(error, FileExistsError) else error.strerror
    kind = RunError if error.errno in FULL else SettingsError
    return kind(f"{folder} cannot be made: {words}; name another folder with --runs")


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
            f"{folder} is in use by {holder}: wait until that process has ended, or give this run another name "
            "with --set name=..."
        ) from None
    except OSError as error:
        raise RunError(
            f"{folder} cannot be locked: {error.strerror}; choose a folder on another disk with --runs"
        ) from None
