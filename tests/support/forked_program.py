"""The programs `coordinator` and `device` in processes that are forked, from one that has imported what they need.

Each is a process like any other, with a session, a log and an environment of its own; it is spared the imports alone,
which are nearly all of what a start costs. Whoever changes a module before others import it starts a new interpreter.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from protofleet.deploy.cli.main import program
from tests.rooms import ROOT

IMPORTED: Final = (
    "protofleet.coordinator.main",
    "protofleet.edge_client.data.sources.folders",
    "protofleet.edge_client.host.loaded_settings",
    "protofleet.edge_client.main",
    "protofleet.methods.fedavg",
)
CONTEXT: Final = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([*IMPORTED, __name__])


class ForkedProgram:
    """`protofleet ARGUMENTS`, asked and told as a subprocess.Popen is."""

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        log.touch()  # it is read from now on
        told = list(arguments), log, dict(os.environ)
        self._process = CONTEXT.Process(target=run, args=told, daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if (code := self.returncode) is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


def run(arguments: Sequence[str], log: Path, environment: dict[str, str]) -> None:
    os.setsid()
    os.chdir(ROOT)
    os.environ.clear()
    os.environ.update(environment)
    with log.open("ab") as written, Path(os.devnull).open("rb") as nothing:
        for stream, number in ((nothing, 0), (written, 1), (written, 2)):
            os.dup2(stream.fileno(), number)
    sys.argv[:] = ["protofleet", *arguments]
    program()
