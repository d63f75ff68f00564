"""The order in which the runs of a device work: begun work is finished, then the first come is served first."""

from __future__ import annotations

from typing import Protocol


class Waiting(Protocol):
    """A run with one task that waits for its turn."""

    @property
    def needed_objects(self) -> set[bytes]:
        """Return the objects of the store that the run's messages and its waiting task need."""
        ...

    def begin_next(self) -> None:
        """Take the task that waits."""
        ...


class WorkTurns:
    """The turns of all runs of a device; only one run works at a time."""

    def __init__(self) -> None:
        self.runs: list[Waiting] = []
        self._working: Waiting | None = None
        self._waiting: list[Waiting] = []

    @property
    def working(self) -> Waiting | None:
        """Return the run whose task is being done."""
        return self._working

    def taken_by_another(self, run: Waiting) -> bool:
        return self._working is not None and self._working is not run

    def begin(self, run: Waiting) -> None:
        self._working = run

    def wait(self, run: Waiting) -> None:
        """Put a run at the end of the line, unless it is in the line already."""
        if run not in self._waiting:
            self._waiting.append(run)

    def end(self, run: Waiting) -> None:
        """Record that the work of a run is done."""
        if self._working is run:
            self._working = None

    def begin_next(self) -> None:
        """Let the run work whose task has waited longest."""
        while self._working is None and self._waiting:
            self._waiting.pop(0).begin_next()

    def leave(self, run: Waiting) -> None:
        """Forget a run that is over; its present work is still finished."""
        self._waiting = [one for one in self._waiting if one is not run]
        self.runs = [one for one in self.runs if one is not run]

    def needed_objects(self) -> set[bytes]:
        """Return the objects of the store that any run needs."""
        return {name for run in self.runs for name in run.needed_objects}
