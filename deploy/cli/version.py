"""The version of protofleet that runs."""

from __future__ import annotations

import functools
from importlib.metadata import PackageNotFoundError, version


@functools.cache  # a forked process shares what its parent has found
def installed_version() -> str:
    try:
        return version("protofleet")
    except PackageNotFoundError:  # a checkout that is not installed
        return "0+checkout"
