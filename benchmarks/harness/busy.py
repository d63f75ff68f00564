"""Processes that keep cores busy while something else is measured."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from types import TracebackType

from benchmarks.harness.processes import cpu_seconds


class BusyProcesses:
    """Processes that keep cores busy inside a `with processes.running()` block. They are stopped when the block ends.

    Some Linux systems divide the cores among sessions, and not among processes. So each of these processes has its
    own session. In one common session, all of them would together get only the share of one process.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> BusyProcesses:
        for _ in range(self._number):
            command = [sys.executable, "-S", "-c", "while True: pass"]
            self._processes.append(subprocess.Popen(command, start_new_session=True))
        self._stop()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tell_all(signal.SIGKILL)
        for process in self._processes:
            process.wait()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        self._tell_all(signal.SIGCONT)
        try:
            yield
        finally:
            self._stop()

    def cpu_seconds(self) -> float:
        """Return the CPU seconds that the processes have used. Call this before the processes end."""
        return sum(cpu_seconds(process.pid) for process in self._processes)

    def _stop(self) -> None:
        """Stop the processes and wait until they have stopped.

        A process on another core still runs for a moment, until the signal reaches it.
        """
        self._tell_all(signal.SIGSTOP)
        for process in self._processes:
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def _tell_all(self, number: signal.Signals) -> None:
        for process in self._processes:
            os.kill(process.pid, number)
