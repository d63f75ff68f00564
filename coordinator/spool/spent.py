"""The bytes that the connection of each device has transferred in the run, for the [budget] table.

The counts are in the spool's index. They are saved with each durable write, like the traffic of the open round, and
once a minute. Only the rows that have changed are written. Bytes that are published once for all present devices
are one number. A device's row has the value of this number when the device joined, so such bytes change no row.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Final

from protofleet.coordinator.spool.index import Index

# Tables of a run with a budget. Other runs do not have these tables.
TABLES: Final = ("budgeted", "spent")


def name_in_ledger(spool: Path) -> str:
    """Return the name of a run in the ledger of the month; "" if the run has not begun or has no budget."""
    address = f"{spool.absolute().as_uri()}?mode=ro"
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(address, uri=True)) as db:
        row = db.execute("SELECT name FROM budgeted").fetchone()
        return str(row[0]) if row else ""
    return ""


@dataclass(slots=True)
class DeviceBytes:
    """The bytes of one device."""

    own: int = 0  # All bytes except those that were published for all devices since the device joined.
    since: int | None = (
        None  # Value of `SpentBytes.published` when the device joined; None while it is absent.
    )
    before_month: int = 0  # Bytes of the device when the current month began.
    largest: int = 0  # Largest number of bytes of the device in one round.


class SpentBytes:
    def __init__(self, index: Index, month: int) -> None:
        """Read the counts of earlier coordinators; `month` is the current month, for example 202611."""
        self._index = index
        index.add_tables(TABLES)
        row: tuple[int, int, str] | None = index.db.execute(
            "SELECT published, month, name FROM budgeted"
        ).fetchone()
        # `name` identifies the run in the ledger of the month. A later run may have the same folder name as this run.
        self.published, self.month, self.name = row or (
            0,
            month,
            f"{index.folder.parent.name}/{token_hex(8)}",
        )
        columns = "device, own, since, before_month, largest"
        self._devices = {
            device: DeviceBytes(*values)
            for device, *values in index.db.execute(f"SELECT {columns} FROM spent")
        }
        self._begun: dict[str, int] = {}  # Device of the open round -> its bytes when the round began.
        self.touched = set[str]()  # Devices whose bytes have changed since the last review.
        self.changed_in_month = set(
            self._devices
        )  # Devices whose bytes are not in the ledger of the month yet.
        self._changed, self._writing = set[str](), set[str]()  # Devices whose rows must be written.
        self._saved = (self.published, self.month) if row else (-1, 0)
        self._saving = self._saved
        # Bytes of each device that are not saved yet, and the largest of these numbers.
        self._unsaved: Counter[str] = Counter()
        self._most_unsaved = 0
        self._wrote = False  # True if the open transaction contains the changed rows.

    def charge(self, device: str, size: int) -> None:
        self._row(device).own += size
        self._unsaved[device] += size
        self._most_unsaved = max(self._most_unsaved, self._unsaved[device])
        self._changed.add(device)
        self.touched.add(device)
        self.changed_in_month.add(device)

    @property
    def unsaved(self) -> int:
        """Return the largest number of bytes of a device that a kill of this process would lose now."""
        return self._most_unsaved + self.published - max(0, self._saved[0])

    def set_present(self, device: str, present: bool) -> None:
        """Record that a device has joined or left. While it is present, it receives what is published for all."""
        row = self._row(device)
        if present == (row.since is not None):
            return
        row.own, row.since = self.total(device), self.published if present else None
        self._changed.add(device)

    def keep_present(self, devices: Collection[str]) -> None:
        """Treat all other devices as absent, after a restart."""
        for device in sorted({*devices, *self._devices}):
            self.set_present(device, device in devices)

    def total(self, device: str) -> int:
        row = self._devices.get(device)
        return 0 if row is None else row.own + (0 if row.since is None else self.published - row.since)

    def in_month(self, device: str) -> int:
        row = self._devices.get(device)
        return 0 if row is None else self.total(device) - row.before_month

    def largest(self, device: str) -> int:
        row = self._devices.get(device)
        return 0 if row is None else row.largest

    def of_all(self) -> Iterator[tuple[str, int]]:
        """Yield each device with its bytes in the run."""
        for device in sorted(self._devices):
            yield device, self.total(device)

    def begin_round(self, devices: Collection[str]) -> None:
        self._begun = {device: self.total(device) for device in devices}

    def end_round(self) -> None:
        """Note the largest number of bytes of each device in one round."""
        for device, before in self._begun.items():
            row, size = self._row(device), self.total(device) - before
            if size > row.largest:
                row.largest = size
                self._changed.add(device)
                self.touched.add(device)
        self._begun = {}

    def begin_month(self, month: int) -> None:
        """Begin a calendar month; this writes all rows."""
        self.month = month
        for device, row in self._devices.items():
            row.before_month = self.total(device)
        self._changed.update(self._devices)

    def write(self) -> None:
        """Write the changed rows in the open transaction."""
        self._wrote = True
        self._writing |= self._changed
        self._changed = set()
        for device in sorted(self._writing):
            row = self._devices[device]
            self._index.put("spent", device, row.own, row.since, row.before_month, row.largest)
        if (self.published, self.month) != self._saved:
            self._saving = self.published, self.month
            self._index.put("budgeted", 1, *self._saving, self.name)

    def committed(self) -> None:
        if not self._wrote:
            return
        self._writing, self._saved, self._wrote = set(), self._saving, False
        self._unsaved.clear()
        self._most_unsaved = 0

    def rolled_back(self) -> None:
        self._changed |= self._writing
        self._writing, self._saving, self._wrote = set(), self._saved, False

    def _row(self, device: str) -> DeviceBytes:
        if device not in self._devices:
            self._devices[device] = DeviceBytes()
        return self._devices[device]
