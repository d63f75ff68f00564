"""A run in real processes that waits after a given round until the test lets it continue."""

from __future__ import annotations

import os
from pathlib import Path

from tests.rooms import ROOT

# Every interpreter of the run imports this text at its start, and forked processes inherit its audit hook.
HOOK = """
import os, sys, time
from pathlib import Path

def wait_before_a_line_of_a_later_round(event, arguments):
    if event != "open" or not str(arguments[0]).endswith("/rounds.jsonl") or not arguments[2] & os.O_WRONLY:
        return
    written = Path(arguments[0])
    while written.exists() and written.read_bytes().count(b"\\n") >= {rounds} and not Path({go!r}).exists():
        time.sleep(0.01)

sys.addaudithook(wait_before_a_line_of_a_later_round)
"""


class HeldRun:
    """A run whose coordinator waits, after it has written `rounds` lines of rounds, until `let_go` is called."""

    def __init__(self, folder: Path, rounds: int) -> None:
        folder.mkdir()
        self._folder, self._go = folder, folder / "go"
        (folder / "sitecustomize.py").write_text(HOOK.format(rounds=rounds, go=str(self._go)))

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": f"{self._folder}{os.pathsep}{ROOT}"}

    def let_go(self) -> None:
        self._go.touch()
