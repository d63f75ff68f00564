"""The programs `coordinator` and `device`, forked from a process that has already imported their modules.

`protofleet run` starts its processes in the same way. A test that must change a module before the program imports
it starts a new interpreter instead.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

from protofleet.lab.local.processes import IMPORTED
from protofleet.runtime.children import Program
from protofleet.runtime.launcher import ForkedChild, Launcher
from tests.rooms import ROOT


@functools.cache
def launcher() -> Launcher:
    """Return the launcher that all tests of this process share; the launcher ends when this process ends."""
    return Launcher((*IMPORTED, "protofleet.edge_client.data.sources.folders"))


def forked_program(arguments: Sequence[str], log: Path, folder: Path = ROOT) -> ForkedChild:
    """Start `protofleet ARGUMENTS` in a folder; the returned child has the methods of subprocess.Popen."""
    with log.open("ab") as written:
        program = Program(log.stem, "protofleet", arguments, folder=str(folder))
        return launcher().start(program, stdout=written.fileno(), stderr=written.fileno())
