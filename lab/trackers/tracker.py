"""Define the data that a tracker gets from a run, and the methods that a tracker must have."""

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
    # The identity that `begin` returned when this run was first written to the tracker; "" for a new run.
    known_as: str
    next_round: int  # The first round that the tracker does not have yet, according to tracked.json.


@dataclass(frozen=True, slots=True)
class Begun:
    known_as: str  # The identity by which the tracker finds the run again.
    next_round: int


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a run. After `stopped`, the same command can continue it later."""

    state: State
    # The same as in Start. The settings of a service's run are known only after its end.
    settings: Mapping[str, str]
    numbers: Numbers
    files: Sequence[Path]
    texts: Mapping[str, str]  # Texts by file name.


class Tracker(Protocol):
    """The writer of one run in one place.

    Any method may raise an exception. The run then reports it and goes on without this tracker.
    """

    def begin(self, run: Start) -> Begun: ...

    def write(self, rounds: Sequence[tuple[int, Numbers]]) -> None:
        """Write rounds. On return, they must be stored, so that they are kept if this process dies."""

    def end(self, ending: Ending) -> None: ...

    def close(self) -> None: ...
