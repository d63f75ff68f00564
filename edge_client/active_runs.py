"""The active runs of the coordinator, as its newest message about itself names them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class ActiveRuns:
    several: bool = False  # whether the coordinator leads several runs
    # Names of the active runs. None if the coordinator leads one run, or if this process has not heard of it yet.
    names: tuple[str, ...] | None = None
    heard: bool = False  # whether this process has received a message of the coordinator about itself

    def lacks(self, run: str) -> bool:
        """Return whether the coordinator has named its active runs, and this run is not one of them."""
        return self.names is not None and run not in self.names
