"""Issue and read the statements of operators: the people who give commands to a coordinator.

In the statement, a root states and signs that two public keys belong to an operator for a limited time, and which
commands the operator may give. It is not a `record`, because readers of records know no grants.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet.protocol.security.enrolment import OWN_OPERATOR, KnownParties, load_trust, own_keys
from protofleet.protocol.security.holders import holder_of
from protofleet.protocol.security.keys import Keys
from protofleet.protocol.security.records import KEY, LATEST, MAX_RECORD
from protofleet.protocol.security.statements import (
    Reader,
    StatementError,
    StatementFault,
    Writer,
    read_armoured,
    sign_statement,
    verified_body,
)
from protofleet.protocol.security.trust import Trust
from protofleet.protocol.security.weak_keys import check_keys
from protofleet.protocol.wire.names import valid_device, valid_name

OPERATOR: Final = "operator"
VIEW: Final = "view"
RUN: Final = "run"
# Grant n is the bit n of the statement's field. `admit`, `deploy` and `lead` have no commands yet.
ADMIT: Final = "admit"
LEAD: Final = "lead"
GRANTS: Final = (VIEW, RUN, ADMIT, "deploy", LEAD)
SHOWS: Final = ("runs", "show", "follow", "labels", "log")  # Verbs of commands that change nothing.


@dataclass(frozen=True, slots=True)
class OperatorRecord:
    federation: str
    name: str
    sign: bytes  # Ed25519 key of this operator's signatures
    receive: bytes  # X25519 key to which messages for this operator are sealed
    serial: int
    not_before: int  # seconds since 1970
    not_after: int
    grants: frozenset[str]

    @property
    def holder(self) -> str:
        return holder_of(self.serial, self.sign)

    def __post_init__(self) -> None:
        valid_name(self.federation)
        valid_device(self.name)
        check_keys(self.sign, self.receive)
        if not 0 <= self.not_before < self.not_after <= LATEST:
            raise ValueError(
                f"the statement would be valid from {self.not_before} to {self.not_after}; the end must be after the "
                "start and not after the year 9999"
            )
        if unknown := sorted(self.grants - {*GRANTS}):
            raise ValueError(f"there is no grant {unknown[0]!r}; there are {', '.join(GRANTS)}")


def issue_operator(operator: OperatorRecord, root: Ed25519PrivateKey) -> bytes:
    fields = Writer().text(operator.federation).text(operator.name).blob(operator.sign).blob(operator.receive)
    fields.number(operator.serial).number(operator.not_before).number(operator.not_after)
    bits = sum(1 << place for place, grant in enumerate(GRANTS) if grant in operator.grants)
    return sign_statement(OPERATOR, fields.number(bits).done(), [root])


def read_operator(data: bytes, roots: Sequence[bytes]) -> OperatorRecord:
    """Return the statement of an operator that one of these roots has signed.

    Grants that this version does not know are left out, because it knows no command that needs them.
    """
    if len(data) > MAX_RECORD:
        message = f"{len(data)} bytes are too many for a statement of an operator; the limit is {MAX_RECORD}"
        raise StatementError(StatementFault.MALFORMED, message)
    fields = Reader(OPERATOR, verified_body(OPERATOR, data, roots))
    federation, name, sign, receive = (
        fields.text(),
        fields.text(),
        fields.blob(KEY, KEY),
        fields.blob(KEY, KEY),
    )
    serial, not_before, not_after, bits = (fields.number() for _ in range(4))
    fields.end()
    grants = frozenset(grant for place, grant in enumerate(GRANTS) if bits >> place & 1)
    try:
        return OperatorRecord(federation, name, sign, receive, serial, not_before, not_after, grants)
    except ValueError as error:
        message = f"the statement of an operator has an impossible value: {error}"
        raise StatementError(StatementFault.MALFORMED, message) from None


def admit_operator(trust: Trust, data: bytes, now: float, name: str = "") -> OperatorRecord:
    """Return the operator in these bytes, if the statement is valid now and was issued for this name."""
    operator = read_operator(data, trust.roots.keys)
    trust.check(operator, now)
    if name and operator.name != name:
        message = f"the statement was issued for {operator.name}, not for {name}"
        raise StatementError(StatementFault.WRONG_NAME, message)
    return operator


class KnownOperators(KnownParties[OperatorRecord]):
    """A mapping of the `<name>.operator` files in a folder."""

    suffix = OPERATOR

    def read(self, path: Path, name: str, now: float) -> OperatorRecord:
        return admit_operator(self.trust, read_armoured(OPERATOR, path), now, name)


def load_operator(folder: Path, now: float) -> tuple[OperatorRecord, Trust, Keys]:
    """Load an operator from `folder`, the folder to which the link `current` of the operator's keys points.

    Raise KeyFileError or StatementError if a file is missing or not valid.
    """
    trust = load_trust(folder)
    own = admit_operator(trust, read_armoured(OPERATOR, folder / OWN_OPERATOR), now)
    identity, receive = own_keys(folder, OWN_OPERATOR, (own.sign, own.receive))
    return own, trust, Keys(identity, receive, own.serial, own.not_before)


def shown_grants(grants: Iterable[str]) -> str:
    """Return the grants as `enrol approve --grants` takes them."""
    return ",".join(grant for grant in GRANTS if grant in grants)
