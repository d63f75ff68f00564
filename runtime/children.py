"""Start and stop child processes that end together with the process that started them."""

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

# Environment variable of a child. Its value is the id of the parent process. The child ends when the parent ends.
PARENT: Final = "PROTOFLEET_PARENT"
PR_SET_PDEATHSIG: Final = 1
TAIL: Final = 1 << 14  # Number of bytes that are read from the end of a log.

# This code has the effect of the option `-P` of Python 3.11 and later: the working directory is not searched for
# modules. The first `import sys` is safe, because `sys` is built in.
START: Final = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; import runpy; del sys.argv[0]; "
    "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)


class Child(Protocol):
    """The common interface of a subprocess.Popen and of a process that a launcher has forked."""

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
    """Return the environment for a child that ends together with this process.

    A child that lived longer would write to files that the next run writes too.
    """
    return {**os.environ, PARENT: str(os.getpid())}


@dataclass(frozen=True, slots=True)
class Program:
    """A program that is started as `python -m module arguments`, in a new session."""

    name: str  # Name of a forked program in `ps` and `top`.
    module: str
    arguments: Sequence[str]
    environment: dict[str, str] = field(default_factory=environment_of_child)
    folder: str = field(default_factory=os.getcwd)  # The working directory of the program.


class Starter(Protocol):
    """An object that starts children as new interpreters, or as forks of a launcher."""

    @property
    def problem(self) -> str:
        """Return the problem that has ended all children of this starter, or ""."""
        ...

    def start(self, program: Program, stdout: int, stderr: int) -> Child:
        """Start a program; `stdout` may be subprocess.PIPE."""


class Interpreters:
    """A starter that starts each child as a new interpreter, which does all imports itself."""

    problem: Final = ""

    def start(self, program: Program, stdout: int, stderr: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command(program.module, *program.arguments), stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
            text=True, start_new_session=True, env=program.environment, cwd=program.folder,
        )  # fmt: skip


def command(module: str, *arguments: str) -> list[str]:
    """Return the command `python -m module arguments`; it does not import modules from the working directory."""
    if sys.version_info >= (3, 11):
        return [sys.executable, "-P", "-m", module, *arguments]
    return [sys.executable, "-c", START, module, *arguments]


def script(path: Path, *arguments: str) -> list[str]:
    """Return the command for a Python file that needs only the standard library.

    The command does not import modules from the working directory, the file's folder or $PYTHONPATH.
    """
    return [sys.executable, "-I", str(path), *arguments]


def end_with_parent(environment: Mapping[str, str] = os.environ) -> None:
    """Make this process end with its parent; a child calls this first.

    This works only on Linux. On other systems, children live longer than a parent that was killed.
    """
    parent = environment.get(PARENT)
    if parent is None or not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):  # The parent has ended before the call of prctl.
        os.kill(os.getpid(), signal.SIGKILL)


def stop(processes: Iterable[Waited], seconds: float, asked: bool = False) -> None:
    """Send SIGTERM to all running processes, and SIGKILL to those that have not ended after `seconds`.

    With `asked`, the processes have had SIGTERM already. A second one would end them at once.
    """
    running = [process for process in processes if process.poll() is None]
    try:
        for process in running:
            if not asked:
                process.terminate()
        wait(running, seconds)
    finally:  # An interrupted wait must not leave processes behind, because the caller may continue.
        for process in running:
            if process.poll() is None:
                process.kill()
                process.wait()


def wait(processes: Iterable[Waited], seconds: float) -> list[Waited]:
    """Wait until all processes have ended, but at most `seconds` in total.

    Return the processes that still run.
    """
    deadline = time.monotonic() + seconds
    running = []
    for process in processes:
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            running.append(process)
    return running


def last_lines(log: Path, begin: int = 0) -> list[str]:
    """Return the last lines of a log, without empty lines.

    Lines before the byte `begin` belong to an earlier start, and are left out.
    """
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(begin, size - TAIL))
        text = file.read().decode(errors="replace")
    return [line for line in text.splitlines() if line.strip()]
