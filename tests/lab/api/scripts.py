"""Run programs of users: each is a script in a separate folder, run by a separate interpreter."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from tests.lab.local.test_run import furnished
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
    """Run a script and return its standard output; it must end with exit code 0 and no standard error."""
    done = subprocess.run(
        [sys.executable, written(place, text)], cwd=place, env=environment, capture_output=True, text=True,
        timeout=seconds,
    )  # fmt: skip
    assert done.returncode == 0 and done.stderr == "", done.stdout + done.stderr
    return done.stdout


def written(place: Path, text: str) -> str:
    (place / "script.py").write_text(textwrap.dedent(text))
    return "script.py"
