"""Tests that Ctrl-C in a command gives one line and the exit code of a stopped command."""

import os
import subprocess
import sys

import pytest

from protofleet.runtime.launcher import CAN_FORK
from tests.rooms import ROOT

# The same happens when Ctrl-C arrives while a C module runs Python text during its import.
INTERRUPTED = """
from protofleet.cli import main
main.parser = lambda: exec("raise KeyboardInterrupt")
main.program()
"""

DROPPED = """
import contextlib, importlib, signal, sys
from protofleet.cli import main

def load(name):
    with contextlib.suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)

importlib.import_module = load
sys.argv[1:] = ["run", "none.toml"]
main.program()
"""


EARLY = """
import sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
sys.argv[1:] = ["methods"]
from protofleet.cli.main import program
program()
"""


def started(text, folder):
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.source", text],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    return done.returncode, done.stderr


def test_an_interrupt_in_executed_text_ends_the_command_with_exit_code_1(tmp_path):
    assert started(INTERRUPTED, tmp_path) == (1, "protofleet: stopped\n")


@pytest.mark.parametrize(
    "module",
    ["protofleet.runtime.logs", "protofleet.protocol.settings.reader", "protofleet.cli.parser"],
)
def test_an_interrupt_during_the_import_of_the_command_gives_one_line(tmp_path, module):
    assert started(EARLY.format(module), tmp_path) == (1, "protofleet: stopped\n")


@pytest.mark.skipif(not CAN_FORK, reason="only a process that forks others imports what they need")
def test_an_interrupt_that_an_imported_module_drops_ends_the_command(tmp_path):
    assert started(DROPPED, tmp_path) == (1, "protofleet: stopped\n")
