"""Child processes of ours: how they are started, stopped, and end with the process that started them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, Protocol, TypeVar

PARENT: Final = "PROTOFLEET_PARENT"  # in the environment of a child: the process id that it ends with
PR_SET_PDEATHSIG: Final = 1
TAIL: Final = 1 << 14  # bytes at the end of a log

# `-P` came with Python 3.11. `sys` is built in, so that nothing can be put in its place.
START: Final = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; import runpy; del sys.argv[0]; "
    "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)


class Child(Protocol):
    """What is asked of a subprocess.Popen, and of a process that a launcher has forked."""

    @property
    def pid(self) -> int: ...
    @property
    def stdout(self) -> IO[Any] | None: ...
    @property
    def returncode(self) -> int | Any: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...
    def send_signal(self, number: int, /) -> None: ...


Waited = TypeVar("Waited", bound=Child)


def environment_of_child() -> dict[str, str]:
    """For a child that shall end with this process: else it would go on writing where the next run writes."""
    return {**os.environ, PARENT: str(os.getpid())}


@dataclass(frozen=True, slots=True)
class Program:
    """What is started as `python -m module arguments`, in a session of its own."""

    name: str  # for `ps` and `top`, where it is forked
    module: str
    arguments: Sequence[str]
    environment: dict[str, str] = field(default_factory=environment_of_child)
    folder: str = field(default_factory=os.getcwd)  # its working directory


class Starter(Protocol):
    """How a child begins: as a fresh interpreter, or forked by a launcher."""

    @property
    def problem(self) -> str:
        """What has ended all its children, if anything has."""
        ...

    def start(self, program: Program, stdout: int, stderr: int) -> Child:
        """`stdout` may be subprocess.PIPE."""


class Interpreters:
    """Children that import all they need themselves."""

    problem: Final = ""

    def start(self, program: Program, stdout: int, stderr: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command(program.module, *program.arguments), stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
            text=True, start_new_session=True, env=program.environment, cwd=program.folder,
        )  # fmt: skip


def command(module: str, *arguments: str) -> list[str]:
    """`python -m module arguments`; nothing of the working directory is ever imported."""
    if sys.version_info >= (3, 11):
        return [sys.executable, "-P", "-m", module, *arguments]
    return [sys.executable, "-c", START, module, *arguments]


def script(path: Path, *arguments: str) -> list[str]:
    """A file that runs by itself: nothing of the working directory, of its folder or of $PYTHONPATH is imported."""
    return [sys.executable, "-I", str(path), *arguments]


def end_with_parent(environment: Mapping[str, str] = os.environ) -> None:
    """Called by a child as its first act. Only on Linux: elsewhere children outlive a parent that was killed."""
    parent = environment.get(PARENT)
    if parent is None or not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):  # the parent ended before the call above
        os.kill(os.getpid(), signal.SIGKILL)


def stop(processes: Iterable[Waited], seconds: float) -> None:
    """SIGTERM to all that run; SIGKILL to those that have not ended after so many seconds."""
    running = [process for process in processes if process.poll() is None]
    try:
        for process in running:
            process.terminate()
        wait(running, seconds)
    finally:  # also where somebody interrupts the waiting, in a program that goes on itself
        for process in running:
            if process.poll() is None:
                process.kill()
                process.wait()


def wait(processes: Iterable[Waited], seconds: float) -> list[Waited]:
    """Until all have ended, at most so many seconds for all together; returned are those that still run."""
    deadline = time.monotonic() + seconds
    running = []
    for process in processes:
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            running.append(process)
    return running


def last_lines(log: Path, begin: int = 0) -> list[str]:
    """The lines at the end of a log, empty ones left out; those before the byte `begin` are of an earlier start."""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(begin, size - TAIL))
        text = file.read().decode(errors="replace")
    return [line for line in text.splitlines() if line.strip()]
