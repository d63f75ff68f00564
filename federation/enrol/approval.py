"""Issue and read the operator's approval of a request.

The approval is one statement that the root has signed. It has all keys, certificates and lists that the sender of
the request needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet.federation.enrol.request import PARTS, Part
from protofleet.protocol.security.records import MAX_RECORD, MAX_SERIALS
from protofleet.protocol.security.statements import (
    Reader,
    StatementError,
    StatementFault,
    Writer,
    sign_statement,
    unverified_body,
    verified_body,
)
from protofleet.protocol.wire.names import COORDINATOR, valid_name

APPROVAL: Final = "approval"
MAX_CERT: Final = 4096
# Largest size of a list in bytes, with 48 bytes for each entry. An entry of an X.509 list takes up to 48 bytes, and
# an entry of another list takes fewer.
MAX_LISTS: Final = 48 * MAX_SERIALS
MAX_RULES: Final = 1 << 18
MAX_ROOTS: Final = 1 << 14


@dataclass(frozen=True, slots=True)
class Approval:
    federation: str
    name: str
    part: Part
    serial: int
    roots: bytes  # The statement of the roots.
    revoked: bytes  # The statement of the revocations.
    record: bytes  # The sender's own record, or an operator's own statement; b"" for a broker.
    coordinator: bytes  # The statement of the coordinator's record, for a device or an operator.
    cert: bytes  # The certificate: X.509 in the form DER.
    crl: bytes = b""  # The X.509 revocation lists in PEM, for a broker only.
    rules: str = ""  # The access rules, for a broker only.
    standby: bytes = b""  # The coordinator's second certificate: X.509 in the form DER.


def issue_approval(approval: Approval, roots: Sequence[Ed25519PrivateKey]) -> bytes:
    a = approval
    fields = Writer().text(a.federation).text(a.name).text(a.part).number(a.serial)
    fields.blob(a.roots).blob(a.revoked).blob(a.record).blob(a.coordinator).blob(a.cert)
    # One field has the lists of a broker or the second certificate of a coordinator. Earlier releases read this field
    # of a coordinator's approval without using it.
    return sign_statement(APPROVAL, fields.blob(a.standby or a.crl).text(a.rules).done(), roots)


def read_approval(data: bytes, roots: Sequence[bytes]) -> Approval:
    return _read(verified_body(APPROVAL, data, roots))


def unverified_roots(data: bytes) -> bytes:
    """Return the roots statement in an approval that was not verified yet."""
    return unverified_approval(data).roots


def unverified_approval(data: bytes) -> Approval:
    """Return an approval whose signature was not checked.

    A caller may refuse the approval because of its content, but must not accept it without a check.
    """
    return _read(unverified_body(APPROVAL, data))


def _read(body: bytes) -> Approval:
    fields = Reader(APPROVAL, body)
    federation, name, part, serial = fields.text(), fields.text(), fields.text(), fields.number()
    roots, revoked = fields.blob(MAX_ROOTS), fields.blob(MAX_LISTS)
    record, coordinator, cert = fields.blob(MAX_RECORD), fields.blob(MAX_RECORD), fields.blob(MAX_CERT)
    is_coordinator = part == COORDINATOR
    more, rules = fields.blob(MAX_CERT if is_coordinator else MAX_LISTS), fields.text(MAX_RULES)
    fields.end()
    if part not in PARTS:
        raise fields.wrong(f"the part {part!r}")
    try:
        valid_name(federation)
        valid_name(name)
    except ValueError as error:
        raise StatementError(StatementFault.MALFORMED, f"an invalid approval: {error}") from None
    crl, standby = (b"", more) if is_coordinator else (more, b"")
    return Approval(
        federation, name, part, serial, roots, revoked, record, coordinator, cert, crl, rules, standby
    )
