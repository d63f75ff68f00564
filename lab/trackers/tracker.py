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
    """The data that a tracker gets before the first number of a run."""

    folder: Path
    settings: Mapping[str, str]  # The settings by their dotted names, without the credentials of the broker.
    # The identity that `begin` returned earlier for this run; "" if the run is new to the tracker.
    known_as: str
    next_round: int  # The first round that the tracker does not have yet, according to tracked.json.


@dataclass(frozen=True, slots=True)
class Begun:
    known_as: str  # An identity that the tracker chooses. With it, the tracker finds the run again.
    next_round: int


@dataclass(frozen=True, slots=True)
class Ending:
    """The data that a tracker gets at the end of a run. A run with the state "stopped" can be continued later."""

    state: State
    # The settings, in the form of Start.settings. If the coordinator is a service, they are known only at the end.
    settings: Mapping[str, str]
    numbers: Numbers
    files: Sequence[Path]
    texts: Mapping[str, str]  # The contents of text files, by file name.


class Tracker(Protocol):
    """An object that writes one run to one place.

    If a method raises an exception, the run reports it and goes on without this tracker.
    """

    def begin(self, run: Start) -> Begun: ...

    def write(self, rounds: Sequence[tuple[int, Numbers]]) -> None:
        """Write rounds.

        They must be stored when this method returns, so that no round is lost if the process dies.
        """

    def end(self, ending: Ending) -> None: ...

    def close(self) -> None: ...
