"""What a tracker is told of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from protofleet.deploy.report.flat_names import Numbers

State = Literal["finished", "diverged", "stopped"]


@dataclass(frozen=True, slots=True)
class Start:
    """A run, before its first number."""

    folder: Path
    settings: Mapping[str, str]  # by dotted names; without what opens a broker
    known_as: str  # what `begin` returned when this run was first written there; "": it is new there
    next_round: int  # the first round that is not written there yet, by our own book


@dataclass(frozen=True, slots=True)
class Begun:
    known_as: str  # by what the tracker finds it again
    next_round: int


@dataclass(frozen=True, slots=True)
class Ending:
    """`stopped`: the same command goes on later."""

    state: State
    settings: Mapping[str, str]  # as in Start; more is known of a service's run when it is over
    numbers: Numbers
    files: Sequence[Path]
    texts: Mapping[str, str]  # name of a file -> what shall stand in it


class Tracker(Protocol):
    """One run in one place. Any method may raise: then the run is told, and goes on without it."""

    def begin(self, run: Start) -> Begun: ...

    def write(self, rounds: Sequence[tuple[int, Numbers]]) -> None:
        """When it returns they are there, also if this process dies."""

    def end(self, ending: Ending) -> None: ...

    def close(self) -> None: ...
