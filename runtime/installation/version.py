"""Find the running version of protofleet, and the command that started this program."""

from __future__ import annotations

import functools
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version


@functools.cache  # A forked process inherits the cached result.
def installed_version() -> str:
    try:
        return version("protofleet")
    except PackageNotFoundError:  # The package runs from a checkout that is not installed.
        return "0+checkout"


def program_words() -> str:
    """Return the program name for commands that a message suggests.

    It is `protofleet` if the shell finds that command, otherwise the path of this program.
    """
    return (
        "protofleet" if shutil.which("protofleet") or not sys.argv[0].endswith("protofleet") else sys.argv[0]
    )
