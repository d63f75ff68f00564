"""The version of protofleet that runs, and how it was called."""

from __future__ import annotations

import functools
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version


@functools.cache  # a forked process shares what its parent has found
def installed_version() -> str:
    try:
        return version("protofleet")
    except PackageNotFoundError:  # a checkout that is not installed
        return "0+checkout"


def program_words() -> str:
    """What to type for the next command: the name where the shell finds it, else the path of this one."""
    return (
        "protofleet" if shutil.which("protofleet") or not sys.argv[0].endswith("protofleet") else sys.argv[0]
    )
