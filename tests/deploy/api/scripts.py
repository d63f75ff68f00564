"""Programs of users: each a script in a folder of its own, run by an interpreter of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from tests.deploy.local.test_run import furnished
from tests.rooms import ROOT
from tests.support.held_run import HeldRun

ENVIRONMENT = {"PYTHONPATH": str(ROOT)}


def place_with_data(folder: Path) -> Path:
    return furnished(folder)


def started(place: Path, text: str, held: HeldRun) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, written(place, text)], cwd=place, env=held.environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def said(place: Path, text: str, environment: dict[str, str], seconds: float = 200) -> str:
    """Its standard output; it must have ended well, and have said nothing else."""
    done = subprocess.run(
        [sys.executable, written(place, text)], cwd=place, env=environment, capture_output=True, text=True,
        timeout=seconds,
    )  # fmt: skip
    assert done.returncode == 0 and done.stderr == "", done.stdout + done.stderr
    return done.stdout


def written(place: Path, text: str) -> str:
    (place / "script.py").write_text(textwrap.dedent(text))
    return "script.py"
