"""The order in which the runs of a device work: begun work is finished, then the first come is served first."""

from __future__ import annotations

from contextvars import Context, copy_context
from typing import Protocol


class Waiting(Protocol):
    """A run with one task that waits for its turn."""

    @property
    def busy(self) -> bool:
        """Return whether the worker works for the run."""
        ...

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
        # The runs in line, each with the context variables with which it came, so that log lines name the right run.
        self._waiting: list[tuple[Waiting, Context]] = []

    @property
    def working(self) -> Waiting | None:
        """Return the run whose task is being done."""
        return self._working

    @property
    def busy(self) -> bool:
        """Return whether the worker works for any run."""
        return self._working is not None or any(run.busy for run in self.runs)

    def taken_by_another(self, run: Waiting) -> bool:
        return self._working is not None and self._working is not run

    def begin(self, run: Waiting) -> None:
        self._working = run

    def wait(self, run: Waiting) -> None:
        """Put a run at the end of the line, unless it is in the line already."""
        if all(one is not run for one, _ in self._waiting):
            self._waiting.append((run, copy_context()))

    def end(self, run: Waiting) -> None:
        """Record that the work of a run is done."""
        if self._working is run:
            self._working = None

    def begin_next(self) -> None:
        """Let the run work whose task has waited longest."""
        while self._working is None and self._waiting:
            run, context = self._waiting.pop(0)
            context.run(run.begin_next)

    def leave(self, run: Waiting) -> None:
        """Forget a run that is over; its present work is still finished."""
        self._waiting = [(one, context) for one, context in self._waiting if one is not run]
        self.runs = [one for one in self.runs if one is not run]

    def needed_objects(self) -> set[bytes]:
        """Return the objects of the store that any run needs."""
        return {name for run in self.runs for name in run.needed_objects}
