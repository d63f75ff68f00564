"""The programs `coordinator` and `device`, forked from a process that has already imported their modules.

`protofleet run` starts its processes in the same way. A test that must change a module before the program imports
it gets a process that has imported only third-party packages, which take most of the time.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

from protofleet.lab.local.processes import IMPORTED
from protofleet.runtime.children import Program
from protofleet.runtime.launcher import ForkedChild, Launcher
from tests.rooms import ROOT

OF_OTHERS = (
    *(module for module in IMPORTED if not module.startswith("protofleet")),
    "torch",
    "cryptography.hazmat.primitives.serialization",
    "cryptography.x509",
    "msgpack",
    "paho.mqtt.client",
    "prometheus_client",
)


@functools.cache
def launcher() -> Launcher:
    """Return the launcher that all tests of this process share; the launcher ends when this process ends."""
    return Launcher((*IMPORTED, "protofleet.edge_client.data.sources.folders"))


@functools.cache
def launcher_without_ours() -> Launcher:
    """Return the launcher of programs that import our modules themselves, after a test has changed something."""
    # A third-party package installs a package `tests`, and the package of this project is in no environment.
    with mock.patch.dict(os.environ, PYTHONPATH=str(ROOT)):
        return Launcher(OF_OTHERS)


def with_fault(planted: str) -> str:
    """Return the text of the program with code that runs before most of our modules are imported."""
    return f"from protofleet.cli.main import program\n{planted}\nprogram()"


def forked_program(
    arguments: Sequence[str], log: Path, folder: Path = ROOT, planted: str = ""
) -> ForkedChild:
    """Start `protofleet ARGUMENTS` in a folder; the returned child has the methods of subprocess.Popen.

    `planted` is code that runs before the program.
    """
    starter, module, words = launcher, "protofleet", list(arguments)
    if planted:
        starter, module, words = launcher_without_ours, "tests.support.source", [with_fault(planted), *words]
    with log.open("ab") as written:
        program = Program(log.stem, module, words, folder=str(folder))
        return starter().start(program, stdout=written.fileno(), stderr=written.fileno())
