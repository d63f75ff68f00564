"""The durable state of a device in one attempt, and its form in bytes.

A device stores the book before each answer leaves. So a device that restarts gives the same answers again.

    book := the fields of `Book` in their order, as fields of a statement (protocol/security/statements.py)
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from protofleet.edge_client.secagg.past_attempts import MOST_ATTEMPTS, PastAttempts
from protofleet.protocol.secagg.control_arrays import unpack_names
from protofleet.protocol.secagg.directory import Directory
from protofleet.protocol.secagg.faults import SecaggError, SecaggFault
from protofleet.protocol.secagg.field import MOST_DEVICES
from protofleet.protocol.secagg.masks import KEY
from protofleet.protocol.secagg.roster import KEYS, ROW, Roster, read_roster
from protofleet.protocol.secagg.sealing import PAIR, SEALED_PAIR
from protofleet.protocol.secagg.shares import SHARE
from protofleet.protocol.secagg.terms import NONCE, Terms, read_terms
from protofleet.protocol.security.statements import Reader, StatementError, Writer

MOST_TERMS: Final = 512
MOST_BITMAP: Final = MOST_DEVICES // 8
MOST_NAME: Final = 64


@dataclass(frozen=True, slots=True)
class AttemptSecrets:
    """The secrets of a device in one attempt. They are deleted when the device has helped to unmask the sum."""

    sealing: bytes  # private X25519 keys
    masking: bytes
    seed: bytes
    own: bytes = b""  # the pair of shares that the device made for itself
    opened: tuple[bytes, ...] = ()  # a pair of shares for each device of `first`, or b"" if it did not open


@dataclass(frozen=True, slots=True)
class Book:
    """All that a device must remember of an attempt. Empty fields belong to steps that were not asked yet."""

    terms: Terms
    past: PastAttempts
    keys: bytes  # answer of the step `keys`
    secrets: AttemptSecrets | None  # None after the end of the attempt
    directory: Directory = field(default_factory=lambda: Directory({}))  # the devices of the roster
    roster: bytes = b""  # numbers belong to `directory`
    shares: bytes = b""  # answer of the step `shares`
    first: bytes = b""  # bitmap of the devices that shared keys
    vector: bytes = b""  # SHA-256 of the masked vector
    survivors: bytes = b""  # bitmap of the devices to whose sum the device has agreed
    released: bytes = b""  # answer of the step `unmask`

    def ended(self) -> Book:
        """Return the book without secrets: the device answers no other step of this attempt."""
        return replace(self, secrets=None)

    def read_roster(self) -> Roster:
        """Return the roster, or raise SecaggError if it was not asked yet."""
        if not self.roster:
            raise SecaggError(SecaggFault.OVER, "the step 'shares' was left out")
        return read_roster(self.terms, self.roster, self.directory)

    def encode(self) -> bytes:
        fields = Writer().blob(self.terms.encode()).number(self.past.round).blobs(self.past.nonces)
        fields.number(int(self.past.spent)).blobs([name.encode() for name in self.past.survivors])
        fields.blob(self.keys).number(int(self.secrets is not None))
        if self.secrets is not None:
            fields.blob(self.secrets.sealing).blob(self.secrets.masking).blob(self.secrets.seed)
            fields.blob(self.secrets.own).blobs(self.secrets.opened)
        names = self.directory.names
        fields.blobs([name.encode() for name in names]).blobs([self.directory.keys[name] for name in names])
        fields.blob(self.roster).blob(self.shares).blob(self.first).blob(self.vector)
        return fields.blob(self.survivors).blob(self.released).done()


def read_book(data: bytes) -> Book:
    """Return the book in these bytes, or raise SecaggError if they are damaged."""
    fields = Reader("book of an attempt", data)
    try:
        terms = read_terms(fields.blob(MOST_TERMS))
        past = PastAttempts(
            fields.number(), fields.blobs(MOST_ATTEMPTS, NONCE), _flag(fields), _names(fields)
        )
        keys = fields.blob(KEYS, KEYS)
        secrets = _secrets(fields) if _flag(fields) else None
        names, identities = _names(fields), fields.blobs(MOST_DEVICES, KEY)
        directory = Directory(dict(zip(names, identities, strict=True)))
        rest = (
            MOST_DEVICES * ROW,
            MOST_DEVICES * SEALED_PAIR,
            MOST_BITMAP,
            KEY,
            MOST_BITMAP,
            MOST_DEVICES * SHARE,
        )
        book = Book(terms, past, keys, secrets, directory, *(fields.blob(most) for most in rest))
        fields.end()
    except (StatementError, UnicodeDecodeError, ValueError) as error:
        raise _damaged(str(error)) from None
    if not _fits(book):
        raise _damaged("its fields do not fit each other")
    return book


def _fits(book: Book) -> bool:
    """Return whether the fields are those of a device that has answered the steps in their order.

    Raise SecaggError if the roster or a set cannot be read.
    """
    if book.past.round != book.terms.round or book.terms.attempt not in book.past.nonces:
        return False
    if not book.roster:
        later = (book.shares, book.first, book.vector, book.survivors, book.released)
        return not any(later) and _fits_secrets(book.secrets, 0, 0)
    roster = book.read_roster()
    first = len(unpack_names(roster, book.first)) if book.first else 0
    if book.survivors:
        unpack_names(roster, book.survivors)
    return (
        len(book.shares) == (len(roster.names) - 1) * SEALED_PAIR
        and len(book.vector) == (KEY if first else 0)
        and len(book.released) in (0, first * SHARE)
        and bool(book.first) >= bool(book.survivors) >= bool(book.released)
        and bool(book.released) <= (book.secrets is None)
        and _fits_secrets(book.secrets, PAIR, first)
    )


def _fits_secrets(secrets: AttemptSecrets | None, own: int, first: int) -> bool:
    """Return whether the secrets have a pair of `own` bytes and one pair for each of `first` devices."""
    if secrets is None:
        return True
    pairs = {len(pair) for pair in secrets.opened}
    return len(secrets.own) == own and len(secrets.opened) == first and pairs <= {0, PAIR}


def _damaged(words: str) -> SecaggError:
    return SecaggError(SecaggFault.MALFORMED, f"the book of an attempt is damaged: {words}")


def _flag(fields: Reader) -> bool:
    value = fields.number()
    if value > 1:
        raise fields.wrong(f"{value} in place of a flag")
    return bool(value)


def _names(fields: Reader) -> tuple[str, ...]:
    return tuple(name.decode() for name in fields.blobs(MOST_DEVICES, MOST_NAME))


def _secrets(fields: Reader) -> AttemptSecrets:
    sealing, masking, seed = (fields.blob(KEY, KEY) for _ in range(3))
    return AttemptSecrets(sealing, masking, seed, fields.blob(PAIR), fields.blobs(MOST_DEVICES, PAIR))
