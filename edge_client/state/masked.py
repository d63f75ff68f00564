"""The entry of device.json for the newest attempt of a run to add the device's update to a masked sum."""

from __future__ import annotations

from dataclasses import dataclass, replace

from protofleet.protocol.secagg.terms import Stage


@dataclass(frozen=True, slots=True)
class MaskedState:
    """The objects of an attempt, as names in the device's own store. The device never offers these objects."""

    phase: str
    round: int
    model: str  # SHA-256 of the method's arrays in the broadcast from which the device has trained
    book: str  # book of the attempt
    payload: str = ""  # update of the method, as the server half would get it
    words: str = ""  # encoded update
    presence: str = ""  # book of the stage that counts the holders of each class
    held: str = ""  # encoded classes of the device
    noise: str = ""  # key of the device's part of the noise, under `dp`
    counts: str = ""  # number of holders of each class, which the device has computed itself

    def objects(self) -> set[str]:
        objects = {self.book, self.payload, self.words, self.presence, self.held, self.noise, self.counts}
        return objects - {""}

    def book_of(self, stage: Stage) -> str:
        return self.presence if stage == "presence" else self.book

    def with_book(self, stage: Stage, book: str) -> MaskedState:
        return replace(self, presence=book) if stage == "presence" else replace(self, book=book)

    def lost(self) -> MaskedState:
        """Return the entry after the disk has lost an object; the device joins no other attempt of the round."""
        return MaskedState(self.phase, self.round, self.model, "")

    def ended(self) -> MaskedState:
        """Return the entry after the device has helped to unmask the sum; the update is not needed any more."""
        return replace(self, payload="", words="", held="", noise="", counts="")
