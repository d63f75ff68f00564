"""Run the command `protofleet` for `python -m protofleet`, without imports from the current folder."""

from __future__ import annotations

import contextlib
import os
import sys

with contextlib.suppress(OSError):  # If the current folder was removed, there is nothing in it to import.
    if sys.path and sys.path[0] == os.getcwd():  # noqa: PTH109 - the import system would search this folder for pathlib
        del sys.path[0]

from protofleet.cli.main import program

if __name__ == "__main__":
    program()
