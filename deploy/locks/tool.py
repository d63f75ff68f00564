"""A tool in a virtual environment of its own, so that it is no dependency of ours. It is made once."""

from __future__ import annotations

import subprocess
import venv
from pathlib import Path
from typing import Final

INSTALL_SECONDS: Final = 300.0


def installed(requirement: str, folder: Path, *options: str) -> Path:
    """The program that `requirement` (name==version) names. `options` are pip's."""
    program = folder / "bin" / requirement.partition("==")[0]
    if not program.exists():
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "-q", "--disable-pip-version-check", "install"]
        subprocess.run(
            [*pip, *options, requirement], check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS
        )
    return program
