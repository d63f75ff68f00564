"""Find and end the processes that a test has started, with all their children, on the whole machine.

Each process inherits a variable of the environment with a word of the test. A task of Slurm has it from `sbatch`.
"""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

VARIABLE = "TEST_OF_ENGINES"
END_SECONDS = 20.0


@dataclass(frozen=True)
class StartedProcesses:
    word: str = field(default_factory=lambda: secrets.token_hex(8))

    def left(self) -> list[int]:
        line = f"{VARIABLE}={self.word}".encode()
        return processes_that(lambda process: line in (process / "environ").read_bytes().split(b"\0"))

    def end(self) -> None:
        """Kill all processes that have the word, until none is left."""
        deadline = time.monotonic() + END_SECONDS
        while found := self.left():
            assert time.monotonic() < deadline, f"these processes do not end: {described(found)}"
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)


@contextmanager
def ended_at_last(monkeypatch: pytest.MonkeyPatch) -> Iterator[StartedProcesses]:
    """Give all processes that are started in the block a word, and end them after the block."""
    started = StartedProcesses()
    monkeypatch.setenv(VARIABLE, started.word)
    try:
        yield started
    finally:
        started.end()


def processes_in(folder: Path) -> list[int]:
    """Return the processes that have a path in the folder in their command line, or work there."""
    inside = f"{folder}/"

    def is_inside(process: Path) -> bool:
        words = (process / "cmdline").read_bytes().decode(errors="replace")
        return inside in words or f"{(process / 'cwd').readlink()}/".startswith(inside)

    return [pid for pid in processes_that(is_inside) if pid != os.getpid()]


def processes_that(condition: Callable[[Path], bool]) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # The process has ended, or belongs to another user.
            if condition(process):
                found.append(int(process.name))
    return found


def described(pids: list[int]) -> str:
    """Return the id and the command line of each process."""
    words = []
    for pid in pids:
        with suppress(OSError):
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            words.append(f"{pid} {line.strip()[:200]}")
    return "; ".join(words)
