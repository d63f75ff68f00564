"""`python -m protofleet`: the command `protofleet`, which imports nothing of the folder that it is called in."""

from __future__ import annotations

import contextlib
import os
import sys

with contextlib.suppress(OSError):  # a folder that was removed holds nothing to import
    if sys.path and sys.path[0] == os.getcwd():  # noqa: PTH109 - the import system would search this folder for pathlib
        del sys.path[0]

from protofleet.cli.main import program

if __name__ == "__main__":
    program()
