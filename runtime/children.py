"""How a process of ours starts another: what lies in the working directory is never imported."""

from __future__ import annotations

import sys
from typing import Final

# `-P` came with Python 3.11. `sys` is built in, so that nothing can be put in its place.
START: Final = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; import runpy; del sys.argv[0]; "
    "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)


def command(module: str, *arguments: str) -> list[str]:
    """`python -m module arguments`, whatever files the user has where it is started."""
    if sys.version_info >= (3, 11):
        return [sys.executable, "-P", "-m", module, *arguments]
    return [sys.executable, "-c", START, module, *arguments]
