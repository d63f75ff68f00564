"""The bytes of the disk that are reserved for updates.

Each check of an update needs the sum of all other reservations, so the sums are kept up to date here.
"""

from __future__ import annotations

from collections.abc import Mapping


class Reservations:
    def __init__(self) -> None:
        self._unfinished: dict[str, int] = {}  # Device -> bytes of its incomplete update.
        self._complete: dict[str, int] = {}
        self._unfinished_bytes = self._complete_bytes = 0

    def reserve(self, device: str, size: int) -> None:
        complete = device in self._complete
        self.free(device)
        self._unfinished[device], self._unfinished_bytes = size, self._unfinished_bytes + size
        if complete:
            self.completed(device)

    def completed(self, device: str) -> None:
        """Record that the update of this device is complete on the disk."""
        if (size := self._unfinished.pop(device, None)) is not None:
            self._unfinished_bytes -= size
            self._complete[device], self._complete_bytes = size, self._complete_bytes + size

    def free(self, device: str) -> None:
        self._unfinished_bytes -= self._unfinished.pop(device, 0)
        self._complete_bytes -= self._complete.pop(device, 0)

    @property
    def total(self) -> int:
        return self._unfinished_bytes + self._complete_bytes

    @property
    def complete(self) -> int:
        return self._complete_bytes

    def beside(self, device: str) -> int:
        """Return the bytes that are reserved for all other devices."""
        return self.total - self._unfinished.get(device, 0) - self._complete.get(device, 0)

    def unfinished_beside(self, device: str) -> int:
        """Return the bytes that are reserved for incomplete updates of all other devices."""
        return self._unfinished_bytes - self._unfinished.get(device, 0)

    @property
    def unfinished(self) -> Mapping[str, int]:
        """Return the bytes that are reserved for incomplete updates, by device."""
        return self._unfinished
