"""The version of protofleet that runs."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def installed_version() -> str:
    try:
        return version("protofleet")
    except PackageNotFoundError:  # a checkout that is not installed
        return "0+checkout"
