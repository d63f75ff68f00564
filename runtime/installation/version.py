"""Find the version of protofleet that runs, and the command that started it."""

from __future__ import annotations

import functools
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version


@functools.cache  # A forked process shares what its parent has found.
def installed_version() -> str:
    try:
        return version("protofleet")
    except PackageNotFoundError:  # The package runs from a checkout that is not installed.
        return "0+checkout"


def program_words() -> str:
    """Return the name to type for the next command.

    It is `protofleet` if the shell finds it, else the path of this program.
    """
    return (
        "protofleet" if shutil.which("protofleet") or not sys.argv[0].endswith("protofleet") else sys.argv[0]
    )
