"""Processes that want a core all the time, for what is measured beside them."""

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
    """They stand still but within `running`. Each has a session of its own, as other programs have: where Linux
    shares the cores out by session, those of one session would count as one."""

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
        """That they have used, while they are there."""
        return sum(cpu_seconds(process.pid) for process in self._processes)

    def _stop(self) -> None:
        """And wait until they do stand still: one that runs on another core goes on until it has heard."""
        self._tell_all(signal.SIGSTOP)
        for process in self._processes:
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def _tell_all(self, number: signal.Signals) -> None:
        for process in self._processes:
            os.kill(process.pid, number)
