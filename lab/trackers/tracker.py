"""Define what a tracker gets from a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from protofleet.lab.report.flat_names import Numbers

State = Literal["finished", "diverged", "stopped"]


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a run, before its first number."""

    folder: Path
    settings: Mapping[str, str]  # The settings by dotted names, without credentials of a broker.
    # The value that `begin` returned when this run was first written there; "" if it is new there.
    known_as: str
    next_round: int  # The first round that is not written there yet, according to tracked.json.


@dataclass(frozen=True, slots=True)
class Begun:
    known_as: str  # The identity by which the tracker finds the run again.
    next_round: int


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a run. After `stopped`, the same command can continue it later."""

    state: State
    # As in Start; the settings of a service's run are known only when it is over.
    settings: Mapping[str, str]
    numbers: Numbers
    files: Sequence[Path]
    texts: Mapping[str, str]  # Name of a file -> its text.


class Tracker(Protocol):
    """The writer of one run in one place.

    Any method may raise an exception. The run then reports it and goes on without this tracker.
    """

    def begin(self, run: Start) -> Begun: ...

    def write(self, rounds: Sequence[tuple[int, Numbers]]) -> None:
        """Write rounds. When this returns, they must be stored, also if this process dies."""

    def end(self, ending: Ending) -> None: ...

    def close(self) -> None: ...
