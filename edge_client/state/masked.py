"""The entry of device.json for the newest attempt of a run to add the device's update to a masked sum."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class MaskedState:
    """The objects of an attempt, as names in the device's own store. The device never offers these objects."""

    phase: str
    round: int
    model: str  # SHA-256 of the method's arrays in the broadcast from which the device has trained
    book: str  # book of the attempt
    payload: str = ""  # update of the method, as the server half would get it
    words: str = ""  # encoded update

    def objects(self) -> set[str]:
        return {self.book, self.payload, self.words}

    def with_book(self, book: str) -> MaskedState:
        return replace(self, book=book)

    def ended(self, book: str) -> MaskedState:
        """Return the entry after the device has helped to unmask the sum; the update is not needed any more."""
        return replace(self, book=book, payload="", words="")
