"""The commands of Slurm as small shell scripts, which print the text that a test has set."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

COMMANDS = ("sbatch", "squeue", "scancel", "scontrol", "sinfo")
CONFIG = "ClusterName             = probe\nMaxArraySize            = 1001\n"
SCRIPT = """#!/bin/sh
cd {folder}
echo "{name} $*" >> calls
env > {name}.environment
cat {name}.err >&2
cat {name}.out
exit $(cat {name}.code)
"""


@dataclass
class ToldSlurm:
    folder: Path

    def __post_init__(self) -> None:
        (self.folder / "bin").mkdir(parents=True)
        for name in COMMANDS:
            program = self.folder / "bin" / name
            program.write_text(SCRIPT.format(folder=self.folder, name=name))
            program.chmod(0o755)
            self.tell(name)
        self.tell("scontrol", CONFIG)
        (self.folder / "calls").touch()

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PATH": f"{self.folder / 'bin'}:/usr/bin:/bin"}

    @property
    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()

    def tell(self, name: str, out: str = "", error: str = "", code: int = 0) -> None:
        for suffix, text in {"out": out, "err": error, "code": str(code)}.items():
            (self.folder / f"{name}.{suffix}").write_text(text)

    def seen_by(self, name: str) -> dict[str, str]:
        """Return the environment of the last call of a command."""
        lines = (self.folder / f"{name}.environment").read_text().splitlines()
        return dict(line.partition("=")[::2] for line in lines)
