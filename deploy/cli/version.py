"""Which protofleet this is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def software() -> str:
    try:
        return version("protofleet")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "0+checkout"
