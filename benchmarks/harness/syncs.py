"""A counter of the syncs of processes. The counter can also slow the syncs down.

The processes preload a library that counts their syncs. This module compiles the library from syncs.c.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from benchmarks.harness.measure import MeasureError

SOURCE = Path(__file__).with_name("syncs.c")
SIZE = 8


class Syncs:
    """A counter of syncs. It counts the syncs of all processes that are started with `environment`."""

    def __init__(self, folder: Path, pause_seconds: float = 0.0) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise MeasureError(
                "the library that counts syncs cannot be compiled, because there is no compiler; install gcc"
            )
        library, self._file = folder / "syncs.so", folder / "syncs"
        command = [compiler, "-O2", "-Wall", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
        built = subprocess.run(command, capture_output=True, text=True)
        if built.returncode != 0:
            raise MeasureError(f"{SOURCE} cannot be built: {built.stderr}")
        self._file.write_bytes(bytes(SIZE))
        self.environment = {
            "LD_PRELOAD": str(library), "SYNCS_FILE": str(self._file), "SYNCS_US": str(round(1e6 * pause_seconds)),
        }  # fmt: skip

    @property
    def count(self) -> int:
        return int.from_bytes(self._file.read_bytes(), "little")
