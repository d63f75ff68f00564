"""Tests that commands that compute nothing do not import torch, which needs a second of CPU and 200 MB."""

import json
import os
import subprocess
import sys

import pytest

from tests.lab.report.test_compare import finished
from tests.rooms import ROOT

ENDED = """
import sys
from protofleet.cli.main import main
try:
    code = main(sys.argv[1:])
except SystemExit as left:
    code = left.code
print("code", code, "torch" if "torch" in sys.modules else "without torch")
"""
WORDS = {
    "--help": 0,
    "run --help": 0,
    "report first": 0,
    "report nowhere": 1,
    "compare first second": 0,
    "health nowhere.toml": 2,
    "unban --folder nowhere": 2,
    "data --fetch minst": 2,
    "keys --folder made device-1": 0,
    "enrol list --root nowhere": 2,
}

REST = {  # the keys of a summary that a report needs and a comparison does not
    "paper": "", "devices": {}, "fedavg": {"up": 1, "down": 1}, "broker": "", "security": "sealed",
    "accuracy": {"start": {}, "final": {}, "pooled": None, "best_by_validation": {}},
}  # fmt: skip


@pytest.mark.parametrize("words", WORDS)
def test_a_command_that_computes_nothing_imports_no_torch(words, tmp_path):
    first = finished(tmp_path / "first", "first", [0.1, 0.4, 0.7]) / "summary.json"
    first.write_text(json.dumps({**json.loads(first.read_text()), **REST}))
    finished(tmp_path / "second", "second", [0.1, 0.5, 0.6])
    done = subprocess.run(
        [sys.executable, "-c", ENDED, *words.split()],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=120,
    )
    assert done.stdout.splitlines()[-1] == f"code {WORDS[words]} without torch", done.stderr


STOPPED = """
import sys
from protofleet.cli.main import main
from protofleet.lab.local import share
from protofleet.runtime.command.errors import RunError
def stopped(*words):
    raise RunError("signal SIGTERM")
share.run_share = stopped
print(main(["fleet", "x", "--share", "0/1"]), "torch" in sys.modules)
"""


def test_a_command_that_a_signal_ends_does_not_import_torch():
    own = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", STOPPED], capture_output=True, text=True, env=own, timeout=120
    )
    assert (done.stdout, done.stderr) == ("1 False\n", "protofleet: signal SIGTERM\n")
