"""The devices of the last masked sums of a run, which outlast the coordinator.

The rows of a sum are written with the next transaction, and so at the latest with the save of the next round. If the
coordinator dies before that, the replay of the round computes the sum again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from protofleet.coordinator.round.past_sums import PastSum
from protofleet.coordinator.spool.columns import names_in
from protofleet.coordinator.spool.index import Index

# Table of a run of masked sums whose cohorts may not differ by only a few devices. Other runs do not have it.
TABLE = "summed"


class SumCohortLedger:
    def __init__(self, index: Index) -> None:
        """Read the rows of earlier coordinators."""
        self._index = index
        index.add_tables((TABLE,))
        rows = index.db.execute(f"SELECT round, attempt, stage, devices FROM {TABLE}").fetchall()
        self.stored = tuple(
            PastSum(number, attempt, stage, tuple(names_in(devices)))
            for number, attempt, stage, devices in rows
        )

    def store(self, sums: Sequence[PastSum]) -> None:
        """Write the sums that are not written yet; the next transaction makes them durable.

        Sums before the rounds that a replay may repeat are deleted, apart from the last one.
        """
        if not (new := [one for one in sums if one not in self.stored]):
            return
        self.stored = (*self.stored, *new)

        def write() -> None:
            for one in new:
                devices = json.dumps(one.devices, allow_nan=False)
                self._index.put(TABLE, one.round, one.attempt, one.stage, devices)
            oldest = "SELECT MIN(round) FROM checkpoint"
            self._index.db.execute(
                f"DELETE FROM {TABLE} WHERE round < (SELECT MAX(round) FROM {TABLE} WHERE round < ({oldest}))"
            )

        self._index.defer(write)
