"""Describe, in one line, where the coordinator of a federation runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from protofleet.protocol.link.standby import SeenState
from protofleet.protocol.wire.printable import printable

# The form of a name that `process_identity` returns.
IDENTITY: Final = re.compile(
    r"(?P<host>.*) pid (?P<pid>[0-9]+) folder (?P<folder>[0-9a-f]{8}) start [0-9a-f]{8}"
)


@dataclass(frozen=True, slots=True)
class Place:
    """The host and the folder of a coordinator."""

    host: str
    folder: str  # the first digits of the hash of the folder's path
    pid: str = ""

    @classmethod
    def of(cls, who: str) -> Place | None:
        """Return the place in the `who` of a state; None if another program has written it."""
        found = IDENTITY.fullmatch(who)
        return cls(found["host"], found["folder"], found["pid"]) if found else None

    def has_folder_of(self, who: str) -> bool:
        """Return whether a process of this `who` uses the same folder on the same host."""
        other = Place.of(who)
        return other is not None and (other.host, other.folder) == (self.host, self.folder)


def described(seen: SeenState, federation: str) -> str:
    """Return the line about the coordinator that has published a state."""
    who, place = seen.state.who, Place.of(seen.state.who)
    where = f"{printable(place.host)} (pid {place.pid})" if place else printable(who) or "another process"
    names = (seen.run,) if seen.state.runs is None else seen.state.runs
    return f"{where} is the coordinator of {federation}, epoch {seen.epoch}, {_runs(names)}"


def _runs(names: Sequence[str]) -> str:
    shown = [printable(name) for name in names if name]
    if not shown:
        return "no runs"
    *most, last = shown
    return f"runs {', '.join(most)} and {last}" if most else f"run {last}"
