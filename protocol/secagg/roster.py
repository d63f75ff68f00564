"""Define the roster of an attempt: its devices with the keys that each of them made for this attempt.

The entries are in the order of names. The place of a device in this order is its number in every later set, and
its point in Shamir's scheme is this number plus 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from protofleet.protocol.secagg.directory import Directory
from protofleet.protocol.secagg.faults import SecaggError, SecaggFault
from protofleet.protocol.secagg.masks import KEY, digest
from protofleet.protocol.secagg.signing import SIGNATURE, verify
from protofleet.protocol.secagg.terms import Terms, enough_of, threshold
from protofleet.protocol.security.weak_keys import is_weak

KEYS: Final = 3 * KEY + SIGNATURE  # bytes of the keys that a device sends
NUMBER: Final = 2  # bytes of the number of a device
ROW: Final = NUMBER + KEYS


@dataclass(frozen=True, slots=True)
class RosterEntry:
    """The keys of one device for one attempt, with its signature."""

    name: str
    sealing: bytes  # X25519 key to which shares are sealed
    masking: bytes  # X25519 key from which the masks of pairs come
    commitment: bytes  # hash of the seed of the device's own mask
    signature: bytes

    def encode(self) -> bytes:
        return self.sealing + self.masking + self.commitment + self.signature

    def verify(self, terms: Terms, identity: bytes) -> None:
        """Raise SecaggError if a key is weak or the signature is not valid for these terms."""
        if is_weak(self.sealing) or is_weak(self.masking) or self.sealing == self.masking:
            raise SecaggError(SecaggFault.BAD_KEYS, f"{self.name} sent a weak key, or one key twice")
        parts = (terms.hash, self.name, self.sealing, self.masking, self.commitment)
        verify(identity, self.name, self.signature, "keys", *parts)


@dataclass(frozen=True)
class Roster:
    """The entries of an attempt in the order of names, and the identity key of each device."""

    terms: Terms
    entries: tuple[RosterEntry, ...]
    identities: tuple[bytes, ...]

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(entry.name for entry in self.entries)

    @cached_property
    def hash(self) -> bytes:
        rows = (
            (entry.name, identity, entry.encode())
            for entry, identity in zip(self.entries, self.identities, strict=True)
        )
        return digest("roster", self.terms.hash, *(part for row in rows for part in row))

    @property
    def threshold(self) -> int:
        """Return the fewest devices that can unmask a sum together."""
        return threshold(len(self.entries))

    @property
    def enough(self) -> int:
        """Return the fewest devices whose sum may be unmasked."""
        return enough_of(len(self.entries), self.terms.least)

    def __iter__(self) -> Iterator[RosterEntry]:
        return iter(self.entries)

    def entry(self, name: str) -> RosterEntry:
        return self.entries[self.place(name)]

    def identity(self, name: str) -> bytes:
        return self.identities[self.place(name)]

    def point(self, name: str) -> int:
        """Return the point of a device in Shamir's scheme."""
        return self.place(name) + 1

    def place(self, name: str) -> int:
        """Return the place of a device, or raise SecaggError."""
        try:
            return self._places[name]
        except KeyError:
            raise SecaggError(SecaggFault.WRONG_SET, f"{name} is not in the roster") from None

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.names)}

    def encode(self, directory: Directory) -> bytes:
        """Return a row for each entry: the number of the device in the directory, and its keys."""
        return b"".join(
            directory.number(entry.name).to_bytes(NUMBER, "little") + entry.encode() for entry in self
        )

    def verify(self) -> None:
        """Raise SecaggError if the roster is too small or too large, or a key or signature is wrong."""
        if not self.terms.least <= len(self.entries) <= self.terms.field.devices:
            least, most = self.terms.least, self.terms.field.devices
            why = SecaggFault.TOO_FEW if len(self.entries) < least else SecaggFault.TOO_MANY
            raise SecaggError(why, f"a roster of {len(self.entries)} devices; it must have {least} to {most}")
        if repeated := names_with_repeated_keys(self.entries):
            raise SecaggError(SecaggFault.BAD_KEYS, f"{', '.join(sorted(repeated))} have the same keys")
        for entry, identity in zip(self.entries, self.identities, strict=True):
            entry.verify(self.terms, identity)


def read_keys(name: str, data: bytes) -> RosterEntry:
    """Return the entry that a device has sent, or raise SecaggError; the signature is not checked."""
    if len(data) != KEYS:
        raise SecaggError(SecaggFault.MALFORMED, f"{name} sent keys of {len(data)} bytes, not {KEYS}")
    sealing, masking, commitment = (data[at : at + KEY] for at in range(0, 3 * KEY, KEY))
    return RosterEntry(name, sealing, masking, commitment, data[3 * KEY :])


def roster_of(terms: Terms, entries: Iterable[RosterEntry], directory: Directory) -> Roster:
    """Return the roster of these entries; `Roster.verify` checks it."""
    ordered = tuple(sorted(entries, key=lambda entry: entry.name))
    return Roster(terms, ordered, tuple(directory.key(entry.name) for entry in ordered))


def read_roster(terms: Terms, data: bytes, directory: Directory) -> Roster:
    """Return the roster in these bytes, or raise SecaggError; `Roster.verify` checks its keys and signatures."""
    rows, rest = divmod(len(data), ROW)
    if rest or rows > terms.field.devices:
        raise SecaggError(
            SecaggFault.MALFORMED,
            f"a roster of {len(data)} bytes; it must have at most {terms.field.devices} rows of {ROW} bytes",
        )
    entries, last = [], -1
    for at in range(0, len(data), ROW):
        number = int.from_bytes(data[at : at + NUMBER], "little")
        if not last < number < len(directory.names):
            raise SecaggError(SecaggFault.MALFORMED, f"a roster with device {number} after device {last}")
        entries.append(read_keys(directory.names[number], data[at + NUMBER : at + ROW]))
        last = number
    return roster_of(terms, entries, directory)


def names_with_repeated_keys(entries: Iterable[RosterEntry]) -> set[str]:
    """Return the devices that sent a key that another device has sent too."""
    found = list(entries)
    keys = Counter(key for entry in found for key in (entry.sealing, entry.masking))
    return {entry.name for entry in found if keys[entry.sealing] > 1 or keys[entry.masking] > 1}
