"""The pip settings of this machine for a board, with the files and folders that they name."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Final

ON_A_BOARD: Final = "/etc/pip.conf"  # The only file that the pip of a deployment reads.
FILE: Final = "file://"


def mounted_pip_settings(folder: Path) -> list[str]:
    """Return arguments of `docker run` that mount the pip settings."""
    settings = _told()
    path = folder / "pip.conf"
    path.write_text("[global]\n" + "".join(f"{key} = {value}\n" for key, value in settings.items()))
    words = (word.removeprefix(FILE) for value in settings.values() for word in value.split())
    there = {word.removesuffix("/simple") for word in words if word.startswith("/") and Path(word).exists()}
    return [
        word
        for source, target in [(str(path), ON_A_BOARD), *((one, one) for one in sorted(there))]
        for word in ("-v", f"{source}:{target}:ro")
    ]


def _told() -> dict[str, str]:
    """Return pip's settings from files and from the environment, which has priority."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    pairs = [(key, str(ast.literal_eval(value))) for key, _, value in (line.partition("=") for line in lines)]
    files = {key.removeprefix("global."): value for key, value in pairs if key.startswith("global.")}
    said = {key.removeprefix(":env:."): value for key, value in pairs if key.startswith(":env:.")}
    return files | said
