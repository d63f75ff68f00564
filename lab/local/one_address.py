"""Refuse an address of the command line for devices that know several nodes of their broker."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from protofleet.protocol.settings.reader import SettingsError, read_toml


def demand_one_address(settings: Sequence[Path], changes: Sequence[str]) -> None:
    """Raise SettingsError if an address of the command line is given with several nodes of a broker."""
    if not any(change.startswith("broker.host=") for change in changes):
        return
    if several := [path for path in settings if names_nodes(path)]:
        raise SettingsError(
            f"--broker names one address, but {several[0]} names the nodes of a cluster in broker.hosts; leave out "
            "--broker"
        )


def names_nodes(settings: Path) -> bool:
    with contextlib.suppress(SettingsError):  # The device reports this error when it reads its settings.
        return "hosts" in read_toml(settings).get("broker", {})
    return False
