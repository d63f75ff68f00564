"""Issue and read the records and revocations of a federation.

In a record, a root states and signs that two public keys belong to a device or coordinator of a federation
for a limited time. docs/security.md describes the layout. The private keys never leave the device or
coordinator, and the root is kept offline.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Protocol, get_args

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet.protocol.security.holders import holder_of
from protofleet.protocol.security.statements import (
    Reader,
    StatementError,
    StatementFault,
    Writer,
    sign_statement,
    verified_body,
)
from protofleet.protocol.security.weak_keys import check_keys
from protofleet.protocol.wire.names import COORDINATOR, Role, valid_name

RECORD: Final = "record"
REVOCATIONS: Final = "revocations"
KEY: Final = 32
MAX_RECORD: Final = 512
MAX_SERIALS: Final = 8192
LATEST: Final = 253_402_300_799  # last second of the year 9999; X.509 and Python cannot express later dates

ROLES: Final[tuple[Role, ...]] = get_args(Role)


@dataclass(frozen=True, slots=True)
class Record:
    federation: str
    name: str
    role: Role
    sign: bytes  # Ed25519 key of this party's signatures
    receive: bytes  # X25519 key to which messages for this party are sealed
    # Each certificate of the federation has its own number. A later record of a name replaces an earlier record.
    serial: int
    not_before: int  # seconds since 1970
    not_after: int

    @property
    def holder(self) -> str:
        return holder_of(self.serial, self.sign)

    def __post_init__(self) -> None:
        valid_name(self.federation)
        valid_name(self.name)
        if self.role not in ROLES:
            raise ValueError(f"role is {self.role!r}, it must be one of {', '.join(ROLES)}")
        if (self.name == COORDINATOR) != (self.role == "coordinator"):
            raise ValueError(
                f"{self.name!r} cannot be a {self.role}: the coordinator is always named 'coordinator', and no other "
                "party has this name"
            )
        if len(self.sign) != KEY or len(self.receive) != KEY:
            raise ValueError(
                f"the keys have {len(self.sign)} and {len(self.receive)} bytes, but each must have {KEY}"
            )
        check_keys(self.sign, self.receive)
        if not 0 <= self.not_before < self.not_after <= LATEST:
            raise ValueError(
                f"the record would be valid from {self.not_before} to {self.not_after}; the end must be after the "
                "start and not after the year 9999"
            )


class SignedEntry(Protocol):
    """A statement about one party that a root has signed, such as a record."""

    @property
    def federation(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def serial(self) -> int: ...
    @property
    def not_before(self) -> int: ...
    @property
    def not_after(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Revocations:
    """The serial numbers of records that are no longer valid, with a version that only grows."""

    federation: str
    version: int = 0  # 0 if no list has been received yet
    serials: frozenset[int] = frozenset()


def issue_record(record: Record, root: Ed25519PrivateKey) -> bytes:
    fields = Writer().text(record.federation).text(record.name).text(record.role)
    fields.blob(record.sign).blob(record.receive).number(record.serial)
    return sign_statement(RECORD, fields.number(record.not_before).number(record.not_after).done(), [root])


def read_record(data: bytes, roots: Sequence[bytes]) -> Record:
    """Return a record that one of these roots has signed.

    This function does not check whether the record is valid now; `Trust.admit` does.
    """
    if len(data) > MAX_RECORD:
        raise StatementError(
            StatementFault.MALFORMED,
            f"{len(data)} bytes are too many for a record; the limit is {MAX_RECORD}",
        )
    fields = Reader(RECORD, verified_body(RECORD, data, roots))
    federation, name, role = fields.text(), fields.text(), fields.text()
    sign, receive = fields.blob(KEY, KEY), fields.blob(KEY, KEY)
    serial, not_before, not_after = fields.number(), fields.number(), fields.number()
    fields.end()
    if role not in ROLES:
        raise fields.wrong(f"the role {role!r}; the known roles are {', '.join(ROLES)}")
    try:
        return Record(federation, name, role, sign, receive, serial, not_before, not_after)
    except ValueError as error:
        raise StatementError(
            StatementFault.MALFORMED, f"the record has an impossible value: {error}"
        ) from None


def issue_revocations(revocations: Revocations, roots: Sequence[Ed25519PrivateKey]) -> bytes:
    packed = b"".join(serial.to_bytes(8, "little") for serial in sorted(revocations.serials))
    fields = Writer().text(revocations.federation).number(revocations.version).blob(packed)
    return sign_statement(REVOCATIONS, fields.done(), roots)


def read_revocations(data: bytes, roots: Sequence[bytes]) -> Revocations:
    fields = Reader(REVOCATIONS, verified_body(REVOCATIONS, data, roots))
    federation, version, packed = fields.text(), fields.number(), fields.blob(8 * MAX_SERIALS)
    fields.end()
    serials = [int.from_bytes(packed[i : i + 8], "little") for i in range(0, len(packed), 8)]
    if len(packed) % 8 or any(a >= b for a, b in pairwise(serials)) or version < 1:
        raise fields.wrong("serial numbers that are not in order")
    return Revocations(federation, version, frozenset(serials))


def check_dates(record: SignedEntry, now: float) -> None:
    """Raise StatementError if `now` is before the first or after the last second of the record."""
    if now < record.not_before:
        message = f"{record.name}'s record is valid only from {day(record.not_before)}; is this clock right?"
        raise StatementError(StatementFault.NOT_YET_VALID, message)
    if now > record.not_after:
        message = f"{record.name}'s record has expired on {day(record.not_after)}; renew it"
        raise StatementError(StatementFault.EXPIRED, message)


def day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
