"""The time for which devices have worked for a run. The runs of a coordinator share the devices by these times."""

from __future__ import annotations

from typing import Final

from protofleet.coordinator.spool.index import Index, tables_in

TABLE: Final = "device_time"


class DeviceTime:
    """The seconds that devices have worked for a run, as far as its accepted updates show, and the run's lift.

    The lift is counted as if devices had already worked for the run. It is None for a run that has never shared the
    devices with another run. Nothing is counted or stored for such a run.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        row: tuple[int, int] | None = None
        if TABLE in tables_in(index.db):
            row = index.db.execute(f"SELECT worked, lift FROM {TABLE}").fetchone()
        self._milliseconds = row[0] if row else 0
        self.lift: float | None = row[1] / 1000 if row else None

    @property
    def seconds(self) -> float:
        return self._milliseconds / 1000

    def share(self, lift: float) -> None:
        """Store the lift, and count from now on."""
        self.lift = round(lift, 3)
        self._index.add_tables((TABLE,))
        with self._index.transaction():
            self._write()

    def add(self, seconds: float) -> None:
        """Count the work for an update; the transaction that accepts the update makes this durable."""
        if self.lift is not None:
            self._milliseconds += round(1000 * seconds)
            self._index.defer(self._write)

    def _write(self) -> None:
        assert self.lift is not None, "a run without a lift counts nothing"
        self._index.put(TABLE, 1, self._milliseconds, round(1000 * self.lift))
