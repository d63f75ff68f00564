"""Child processes of ours: how they are started, stopped, and end with the process that started them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

PARENT: Final = "PROTOFLEET_PARENT"  # in the environment of a child: the process id that it ends with
PR_SET_PDEATHSIG: Final = 1
TAIL: Final = 1 << 14  # bytes at the end of a log

# `-P` came with Python 3.11. `sys` is built in, so that nothing can be put in its place.
START: Final = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; import runpy; del sys.argv[0]; "
    "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)


def command(module: str, *arguments: str) -> list[str]:
    """`python -m module arguments`; nothing of the working directory is ever imported."""
    if sys.version_info >= (3, 11):
        return [sys.executable, "-P", "-m", module, *arguments]
    return [sys.executable, "-c", START, module, *arguments]


def environment_of_child() -> dict[str, str]:
    """For a child that shall end with this process: else it would go on writing where the next run writes."""
    return {**os.environ, PARENT: str(os.getpid())}


def end_with_parent(environment: Mapping[str, str] = os.environ) -> None:
    """Called by a child as its first act. Only on Linux: elsewhere children outlive a parent that was killed."""
    parent = environment.get(PARENT)
    if parent is None or not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):  # the parent ended before the call above
        os.kill(os.getpid(), signal.SIGKILL)


def stop(processes: Iterable[subprocess.Popen[Any]], seconds: float) -> None:
    """SIGTERM to all that run; SIGKILL to those that have not ended after so many seconds."""
    running = [process for process in processes if process.poll() is None]
    for process in running:
        process.terminate()
    for process in wait(running, seconds):
        process.kill()
        process.wait()


def wait(processes: Iterable[subprocess.Popen[Any]], seconds: float) -> list[subprocess.Popen[Any]]:
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
