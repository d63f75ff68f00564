"""Decide which records are valid, from the roots of a federation and their revocations.

The roots are sent as a statement with a version. Both the earlier roots and the new roots sign this
statement. So a party that trusts the earlier roots or the new roots can accept the statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet.protocol.security.records import (
    KEY,
    Record,
    Revocations,
    SignedEntry,
    check_dates,
    read_record,
    read_revocations,
)
from protofleet.protocol.security.statements import (
    Reader,
    StatementError,
    StatementFault,
    Writer,
    sign_statement,
    unverified_body,
    verified_body,
)
from protofleet.protocol.security.weak_keys import check_sign
from protofleet.protocol.wire.names import Role

ROOTS: Final = "roots"
MAX_ROOTS: Final = 2  # the old and the new root, while a root is being replaced
MAX_AUTHORITY: Final = 4096


@dataclass(frozen=True, slots=True)
class Roots:
    """The keys whose signatures are valid in a federation, and the authorities that sign its TLS certificates."""

    federation: str
    version: int
    keys: tuple[bytes, ...]  # Ed25519 keys, the newest last
    authorities: tuple[bytes, ...]  # X.509 certificates in DER form, the newest last


@dataclass(frozen=True, slots=True)
class Trust:
    roots: Roots
    revoked: Revocations

    def admit(self, data: bytes, now: float, *, name: str = "", role: Role | None = None) -> Record:
        """Return the record in these bytes, if it is valid now and has this name and role.

        Otherwise raise StatementError with the reason.
        """
        record = read_record(data, self.roots.keys)
        self.check(record, now)
        if role is not None and record.role != role:
            raise StatementError(StatementFault.WRONG_ROLE, f"{record.name} is a {record.role}, not a {role}")
        if name and record.name != name:
            raise StatementError(
                StatementFault.WRONG_NAME, f"the record was issued for {record.name}, not for {name}"
            )
        return record

    def check(self, record: SignedEntry, now: float) -> None:
        """Raise StatementError if a record that was admitted before is no longer valid."""
        if record.federation != self.roots.federation:
            message = (
                f"{record.name} belongs to federation {record.federation}, this is {self.roots.federation}"
            )
            raise StatementError(StatementFault.WRONG_FEDERATION, message)
        check_dates(record, now)
        if record.serial in self.revoked.serials:
            raise StatementError(
                StatementFault.REVOKED, f"{record.name}'s record {record.serial} has been revoked"
            )

    def with_revocations(self, data: bytes) -> Trust:
        """Return this trust with a later list of revocations.

        Raise StatementError for an earlier list, because an earlier list would make a revoked party valid
        again.
        """
        offered = read_revocations(data, self.roots.keys)
        if offered.federation != self.roots.federation:
            raise StatementError(
                StatementFault.WRONG_FEDERATION,
                f"the list belongs to another federation: {offered.federation}",
            )
        stale = offered.version < self.revoked.version
        if stale or (offered.version == self.revoked.version and offered.serials != self.revoked.serials):
            message = (
                f"revocation list {offered.version} is offered, but list {self.revoked.version} is in use"
            )
            message += "; if the operator's folder was restored from a copy, repeat the later revocations"
            raise StatementError(StatementFault.SUPERSEDED, message)
        return replace(self, revoked=offered)

    def with_roots(self, data: bytes) -> Trust:
        """Return this trust with later roots.

        Raise StatementError if no present root has signed the statement, or if its roots are older than the
        present roots.
        """
        offered = read_roots(data, self.roots.keys)
        if offered.federation != self.roots.federation:
            raise StatementError(
                StatementFault.WRONG_FEDERATION,
                f"the roots belong to another federation: {offered.federation}",
            )
        stale = offered.version < self.roots.version
        if stale or (offered.version == self.roots.version and offered != self.roots):
            message = (
                f"roots of version {offered.version} are offered, but version {self.roots.version} is in use"
            )
            raise StatementError(StatementFault.SUPERSEDED, message)
        return replace(self, roots=offered)


def issue_roots(roots: Roots, keys: Sequence[Ed25519PrivateKey]) -> bytes:
    fields = Writer().text(roots.federation).number(roots.version)
    return sign_statement(ROOTS, fields.blobs(roots.keys).blobs(roots.authorities).done(), keys)


def read_roots(data: bytes, roots: Sequence[bytes]) -> Roots:
    """Return the roots in a statement that one of `roots` has signed."""
    verified_body(ROOTS, data, roots)
    return first_roots(data)


def first_roots(data: bytes) -> Roots:
    """Return roots that have signed their own statement; a person must check their fingerprint.

    Each of the roots must have signed the statement. So a person who trusts one of these roots can trust all
    of them.
    """
    offered = _roots(unverified_body(ROOTS, data))
    for key in offered.keys:
        verified_body(ROOTS, data, [key])
    return offered


def _roots(body: bytes) -> Roots:
    fields = Reader(ROOTS, body)
    federation, version = fields.text(), fields.number()
    keys, authorities = fields.blobs(MAX_ROOTS, KEY), fields.blobs(MAX_ROOTS, MAX_AUTHORITY)
    fields.end()
    if not keys or len(set(keys)) < len(keys) or any(len(key) != KEY for key in keys) or not authorities:
        raise fields.wrong(
            f"{len(keys)} root keys and {len(authorities)} authorities; at least one authority and one key are "
            "needed, and the keys must be different"
        )
    for key in keys:
        try:
            check_sign(key)
        except ValueError as error:
            raise fields.wrong(f"a root key that cannot be used: {error}") from None
    return Roots(federation, version, keys, authorities)
