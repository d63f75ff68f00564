"""`protofleet enrol ...` as an operator calls it: each command runs in a separate process."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def enrol_in(folder, line, code=0):
    """Run `protofleet enrol` in a folder and return what it printed.

    Assert that it ended with this exit code and printed no traceback.
    """
    done = subprocess.run(
        [sys.executable, "-m", "protofleet", "enrol", *line.split()], stdin=subprocess.DEVNULL,
        cwd=folder, capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode == code and "Traceback" not in said, said
    return said
