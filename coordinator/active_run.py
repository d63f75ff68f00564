"""Open the folder of a run that a coordinator of several runs conducts, and read its state from the disk."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from protofleet.coordinator.config import CoordinatorSettings
from protofleet.coordinator.connection import CoordinatorConnection, run_of
from protofleet.coordinator.operator_commands import state_of
from protofleet.coordinator.queue.generation import Generation
from protofleet.coordinator.queue.states import RunFact
from protofleet.coordinator.spool.generations import begin_generation
from protofleet.coordinator.spool.origin import Origin
from protofleet.coordinator.spool.spool import Spool


class ActiveRun:
    """A run that is conducted: its folder, which has the epoch of the process, and its observers."""

    def __init__(
        self, settings: CoordinatorSettings, connection: CoordinatorConnection, keep_waiting: Callable[[], bool],
        origin: Origin | None = None, generation: Generation | None = None,
    ) -> None:  # fmt: skip
        """Claim the folder of the run, and restore its state."""
        self.name, self.folder = settings.name, Path(settings.folder) / settings.name
        plan = settings.plan()
        self.spool = Spool(self.folder / "coordinator")
        self._ends = contextlib.ExitStack()
        self._ends.callback(self.spool.close)
        self.finish: Callable[[], None] = lambda: None
        try:
            text, clock = plan.encode().decode(), int(time.time())
            self.spool.start_run(settings.name, text, clock, exactly=connection.link.epoch)
            if origin is not None:
                self.spool.start_from(origin)
            if generation is not None:
                begin_generation(self.spool.index, generation.number, self.spool.newest_round)
            self.run = run_of(settings, plan, self.spool, connection, keep_waiting, generation)
        except BaseException:
            self.close()
            raise
        if self.run.budget:
            self._ends.callback(self.run.budget.close)

    def observe(self, observers: contextlib.AbstractContextManager[Callable[[], None]]) -> None:
        """Keep the observers until the run is closed; they return the function that writes the summary."""
        self.finish = self._ends.enter_context(observers)

    def close(self) -> None:
        self._ends.close()


def fact_of(conducted: ActiveRun) -> RunFact | None:
    """Return the state of a run from what is on the disk; None while something is not written yet."""
    run = conducted.run
    if len(run.queue) or run.spool.has_uncommitted:
        return None
    return RunFact(*state_of(run.machine, run.view))
