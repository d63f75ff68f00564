"""Ctrl-C in a command: one line, and the exit code of one that was stopped."""

import os
import subprocess
import sys

from tests.rooms import ROOT

# As where it meets a C module that runs Python text while it is imported.
INTERRUPTED = """
from protofleet.deploy.cli import main
main.parser = lambda: exec("raise KeyboardInterrupt")
main.program()
"""


def test_an_interrupt_in_text_that_c_code_runs_ends_with_the_exit_code_of_any_other(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.source", INTERRUPTED],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "protofleet: stopped\n")
