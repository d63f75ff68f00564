"""The programs `coordinator` and `device` in processes that are forked, from one that has imported what they need.

They are started as `protofleet run` starts its own. Whoever changes a module before others import it starts a new
interpreter.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

from protofleet.deploy.local.processes import IMPORTED
from protofleet.runtime.children import Program
from protofleet.runtime.launcher import ForkedChild, Launcher
from tests.rooms import ROOT


@functools.cache
def launcher() -> Launcher:
    """One for all tests of a process; it ends with it."""
    return Launcher((*IMPORTED, "protofleet.edge_client.data.sources.folders"))


def forked_program(arguments: Sequence[str], log: Path, folder: Path = ROOT) -> ForkedChild:
    """`protofleet ARGUMENTS` in a folder, asked and told as a subprocess.Popen is."""
    with log.open("ab") as written:
        program = Program(log.stem, "protofleet", arguments, folder=str(folder))
        return launcher().start(program, stdout=written.fileno(), stderr=written.fileno())
