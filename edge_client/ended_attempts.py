"""Delete the secrets of masked sums when their run is over.

A device that fell silent in an attempt still has them, because only the end of an attempt deletes them.
"""

from __future__ import annotations

import logging

from protofleet.edge_client.masked_sums import end_attempt
from protofleet.edge_client.state.device import DeviceState
from protofleet.edge_client.work_turns import WorkTurns
from protofleet.protocol.storage.disk import is_full

log = logging.getLogger("protofleet.device")


class EndedAttempts:
    """The attempts of the runs of a device that are over."""

    def __init__(self, state: DeviceState, over: str, turns: WorkTurns) -> None:
        """Delete what an earlier process has left; `over` is the last run whose end was reported."""
        self._state, self._turns = state, turns
        self.delete(over)

    def delete(self, run: str = "") -> None:
        """Delete the secrets of the runs that are recorded as over, and of `run`, which is over too.

        Do nothing while the worker is busy, because it may write objects now.
        """
        over = [one for one in self._state.file.runs if one.masked and (one.over or one.run == run)]
        if not over or self._turns.busy:
            return
        try:
            for entry in over:
                end_attempt(self._state.of(entry.run))
            self._state.keep_only(self._turns.needed_objects())
        except OSError as error:
            if not is_full(error):
                raise
            log.error("the secrets of an ended masked sum stay on the disk until the next start: %s", error)
