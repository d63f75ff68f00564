"""The time for which devices have worked for a run. The runs of a coordinator share the devices by these times."""

from __future__ import annotations

from typing import Final

from protofleet.coordinator.spool.index import Index, tables_in

TABLE: Final = "device_time"


class DeviceTime:
    """The seconds that devices have worked for a run, as far as its accepted updates show, and the run's lift.

    The lift is counted as if devices had already worked for the run. It is None for a run that has never shared the
    devices with another run. Nothing is counted or stored for such a run, unless its budget needs the count.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        row: tuple[int, int | None] | None = None
        if TABLE in tables_in(index.db):
            row = index.db.execute(f"SELECT worked, lift FROM {TABLE}").fetchone()
        self._milliseconds = row[0] if row else 0
        self.lift = None if row is None or row[1] is None else row[1] / 1000
        self._counts = row is not None

    @property
    def seconds(self) -> float:
        return self._milliseconds / 1000

    def share(self, lift: float) -> None:
        """Store the lift, and count from now on."""
        self.lift = round(lift, 3)
        self._begin()

    def count(self) -> None:
        """Count from now on, although the run shares the devices with no other run."""
        if not self._counts:
            self._begin()

    def _begin(self) -> None:
        self._counts = True
        self._index.add_tables((TABLE,))
        with self._index.transaction():
            self._write()

    def add(self, seconds: float) -> None:
        """Count the work for an update; the transaction that accepts the update makes this durable."""
        if self._counts:
            self._milliseconds += round(1000 * seconds)
            self._index.defer(self._write)

    def _write(self) -> None:
        lift = None if self.lift is None else round(1000 * self.lift)
        self._index.put(TABLE, 1, self._milliseconds, lift)
