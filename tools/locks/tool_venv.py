"""Install tools in their own virtual environments, so that the project does not depend on them."""

from __future__ import annotations

import subprocess
import venv
from pathlib import Path
from typing import Final

INSTALL_SECONDS: Final = 300.0


def install_tool(requirement: str, folder: Path, *pip_options: str) -> Path:
    """Install the program of `requirement` (name==version) if it is not installed yet; return its path."""
    program = folder / "bin" / requirement.partition("==")[0]
    if not program.exists():
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "-q", "--disable-pip-version-check", "install"]
        subprocess.run(
            [*pip, *pip_options, requirement],
            check=True,
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS,
        )
    return program
