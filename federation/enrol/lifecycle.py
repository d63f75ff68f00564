"""Approve, renew and revoke certificates with the root, and rotate the root itself."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from protofleet.federation.brokers.mosquitto import access_rules
from protofleet.federation.enrol.approval import APPROVAL, Approval, issue_approval
from protofleet.federation.enrol.authority import Authority, IssuedCertificate, Root, make_root, with_roots
from protofleet.federation.enrol.register import CHECK, STANDBY_PART, RegisterEntry
from protofleet.federation.enrol.request import Request, read_request
from protofleet.protocol.security.operators import OPERATOR
from protofleet.protocol.security.records import RECORD, day
from protofleet.protocol.security.statements import (
    StatementError,
    StatementFault,
    armoured,
    fingerprint,
    read_armoured,
)
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.wire.names import COORDINATOR, RESERVED_RULE, is_reserved

DAYS: Final = 365.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReviewedRequest:
    """A request for the right name and part. It may be approved after its fingerprint was compared."""

    request: Request
    data: bytes

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.data)


def review_request(
    authority: Authority, data: bytes, name: str = "", part: str = "device"
) -> ReviewedRequest:
    """Return the request if it is for this name and part; raise StatementError if it is not.

    The operator, and not the sender, chooses the name and the part. An empty name allows any name.
    """
    request = read_request(data)
    taken = authority.register.latest(request.name)
    if taken is not None and taken.part != request.part:
        message = f"{request.name} is the name of {_a(taken.part)} already"
        message += f"; choose another name for the {request.part}"
        raise StatementError(StatementFault.WRONG_ROLE, message)
    if taken is None and is_reserved(request.name):
        raise StatementError(
            StatementFault.WRONG_NAME, f"{request.name} asks for a reserved name; {RESERVED_RULE}"
        )
    if request.part != part:
        raise StatementError(StatementFault.WRONG_ROLE, _other_part(request, part))
    if name and request.name != name:
        raise StatementError(
            StatementFault.WRONG_NAME,
            f"{name} was expected, but the request is for the name {request.name}",
        )
    if request.federation != authority.federation:
        message = (
            f"{request.name} asks for federation {request.federation}, this root is of {authority.federation}"
        )
        raise StatementError(StatementFault.WRONG_FEDERATION, message)
    return ReviewedRequest(request, data)


def _a(part: str) -> str:
    return f"an {part}" if part == OPERATOR else f"a {part}"


def _other_part(request: Request, part: str) -> str:
    hosts = f" for {', '.join(request.hosts[:3])}" if request.hosts else ""
    message = f"{request.name} asks to be enrolled as {_a(request.part)}{hosts}, not as {_a(part)}"
    return f"{message}; if this is intended, `protofleet enrol approve --part {request.part}` approves it"


def approve(
    authority: Authority, reviewed: ReviewedRequest, days: float = DAYS, replace: bool = False,
    grants: frozenset[str] = frozenset(),
) -> bytes:  # fmt: skip
    """Issue an approval, and write it to approvals/<name>.approval. Only an operator has grants.

    An earlier record of the name stays valid until it expires, because the participant may be in the middle
    of a run. If the name was revoked before, the approvals of the brokers are written again with new rules.
    """
    request = reviewed.request
    denied = request.name in revoked_names(authority, authority.now())
    taken = authority.register.latest(request.name)
    if (
        taken is not None
        and taken.is_valid(authority.now())
        and not replace
        and not same_keys(authority, reviewed)
    ):
        message = f"{request.name} is enrolled with other keys"
        raise SettingsError(
            f"{message}; if the keys of this name were really replaced, use --replace; otherwise the request comes "
            "from an intruder"
        )
    root = issuing_root(authority, request)
    issued = authority.issue(request, days, reviewed.fingerprint, root, grants)
    if request.part == COORDINATOR:
        issued = authority.with_new_standby(issued, request, root)
    authority.store(issued, reviewed.data)
    if denied:
        reissue_approvals(authority, "broker")
    return _write_approval(authority, request, issued)


def same_keys(authority: Authority, reviewed: ReviewedRequest) -> bool:
    """Return whether this name's last approved request has the same keys.

    The result is False if the last approved request cannot be read any more.
    """
    new = reviewed.request
    try:
        old = review_request(authority, authority.stored_request(new.name), new.name, new.part).request
    except StatementError:
        return False
    return (old.sign, old.receive, old.csr_key) == (new.sign, new.receive, new.csr_key)


def renew(authority: Authority, name: str, days: float = DAYS) -> bytes:
    """Issue a new record and certificate for the same keys."""
    _check_own_enrolment(authority, name)
    latest = authority.register.latest(name)
    if latest is None:
        raise SettingsError(
            f"{name} was never enrolled here; the enrolled names are {enrolled_names(authority)}"
        )
    if latest.revoked_at:
        message = (
            f"{name} was revoked on {day(latest.revoked_at)}; it needs new keys: enrol request --new-keys"
        )
        raise SettingsError(message)
    reviewed = review_request(authority, authority.stored_request(name), name, latest.part)
    return approve(authority, reviewed, days, grants=authority.grants_of(name))


def revoke(authority: Authority, name: str, reason: str, also: Iterable[int] = ()) -> list[RegisterEntry]:
    """Revoke all valid certificates of the name, and the serial numbers in `also`.

    The coordinator's second certificate is revoked together with the coordinator.
    """
    _check_own_enrolment(authority, name)
    now = authority.now()
    own = [e for e in authority.register.entries if e.name == name and e.part != CHECK and e.is_valid(now)]
    if not own:
        latest = authority.register.latest(name)
        state = f"is {latest.state(now)} already" if latest else "was never enrolled here"
        raise SettingsError(f"{name} {state}; the enrolled names are {enrolled_names(authority)}")
    record, _ = authority.record_of(own[-1])
    if name == COORDINATOR:
        own += [e for e in authority.register.entries if e.part == STANDBY_PART and e.is_valid(now)]
    authority.revoke({*(entry.serial for entry in own), *also}, reason)
    record.unlink(missing_ok=True)
    reissue_approvals(authority, "broker", "coordinator")
    return own


def _check_own_enrolment(authority: Authority, name: str) -> None:
    latest = authority.register.latest(name)
    if latest is not None and latest.part == STANDBY_PART:
        raise SettingsError(
            f"{name} is the coordinator's second certificate; it is renewed and revoked together with {COORDINATOR}"
        )


def reissue_approvals(authority: Authority, *parts: str) -> list[str]:
    """Write the approvals of valid certificates again, with the current roots, lists and access rules."""
    reissued = []
    for entry in authority.register.current_entries(authority.now()):
        if entry.part == STANDBY_PART or (parts and entry.part not in parts):
            continue
        try:
            _reissue(authority, entry)
        # A bad stored request of one name must not stop the approvals of the other names.
        except StatementError as error:
            log.warning("%s gets no new approval: %s", entry.name, error)
        else:
            reissued.append(entry.name)
    return reissued


def _reissue(authority: Authority, entry: RegisterEntry) -> None:
    if entry.root not in authority.register.roots:  # This root was retired in the meantime.
        renew(authority, entry.name)
        return
    reviewed = review_request(authority, authority.stored_request(entry.name), entry.name, entry.part)
    issued = authority.stored_certificate(entry)
    if entry.part == COORDINATOR and not issued.standby:  # An earlier release enrolled this coordinator.
        root = next(root for root in authority.roots if root.number == entry.root)
        issued = authority.with_new_standby(issued, reviewed.request, root)
        authority.store(issued, reviewed.data)
    _write_approval(authority, reviewed.request, issued)


def issuing_root(authority: Authority, request: Request) -> Root:
    """Return the root that signs the certificate for this request.

    During a rotation the new root signs the certificates of devices and operators at once. The coordinator gets a
    certificate of the new root when all of these know the new root. Brokers get such a certificate when the
    coordinator knows it too.
    """
    clients = ("device", OPERATOR)
    verified_by = {"coordinator": clients, "broker": (*clients, "coordinator")}.get(request.part, ())
    return authority.roots[0 if verified_by and not_yet_rotated(authority, *verified_by) else -1]


def not_yet_rotated(authority: Authority, *parts: str) -> list[str]:
    """Return the names whose newest certificate was signed by an older root."""
    newest, entries = authority.roots[-1].number, authority.register.current_entries(authority.now())
    own = (e for e in entries if e.part != STANDBY_PART)
    return [e.name for e in own if e.root != newest and (not parts or e.part in parts)]


def begin_rotation(authority: Authority, years: float) -> Authority:
    """Add a second root. The next approval of each name contains a certificate of the new root.

    If there are two roots already, only the approvals are written again. An earlier command may have been
    interrupted before it wrote the approvals.
    """
    register = authority.register
    if len(authority.roots) > 1:
        reissue_approvals(authority, "broker", "coordinator")
        return authority
    number = register.roots[-1] + 1
    make_root(authority.folder, authority.federation, number, years, authority.now(), durable=True)
    authority.register = with_roots(register, (*register.roots, number), authority.now())
    authority = _with_roots(authority, signed_by=[*authority.roots, authority.load_root(number)])
    reissue_approvals(authority, "broker", "coordinator")
    return authority


def finish_rotation(authority: Authority, force: bool) -> Authority:
    """Retire the old root, and destroy its private keys.

    If the old root is retired already, only the approvals are written again. An earlier command may have been
    interrupted before it wrote the approvals.
    """
    if authority.register.roots == (1,):
        raise SettingsError("there is only one root; `enrol rotate` begins its replacement")
    if len(authority.roots) < 2:
        reissue_approvals(authority)
        return authority
    if (remaining := not_yet_rotated(authority)) and not force:
        raise SettingsError(rotation_status(authority) + f"; --force locks out these {len(remaining)} names")
    old_and_new, register = authority.roots, authority.register
    authority.register = with_roots(register, register.roots[1:], authority.now())
    authority = _with_roots(authority, signed_by=old_and_new)
    authority.destroy_retired_keys()
    reissue_approvals(authority)
    return authority


def rotation_status(authority: Authority) -> str:
    remaining = not_yet_rotated(authority)
    if not remaining:
        return "all names have a certificate of the new root: `enrol rotate --finish` retires the old root"
    return (
        f"these names still use the old root: {', '.join(remaining)}; renew their certificates (the devices first), "
        "install the approvals, and then use --finish"
    )


def enrolled_names(authority: Authority) -> str:
    return ", ".join(sorted({e.name for e in authority.register.entries if e.part != CHECK})) or "none yet"


def _with_roots(authority: Authority, signed_by: list[Root]) -> Authority:
    authority.roots = [root for root in signed_by if root.number in authority.register.roots]
    authority.save(signed_by)
    return authority


def _write_approval(authority: Authority, request: Request, issued: IssuedCertificate) -> bytes:
    coordinator = authority.folder / "records" / f"{COORDINATOR}.record"
    is_broker, now = request.part == "broker", authority.now()
    with_coordinator = request.part in ("device", OPERATOR) and coordinator.exists()
    data = issue_approval(
        Approval(
            authority.federation, request.name, request.part, issued.entry.serial,
            roots=authority.roots_statement(), revoked=authority.revoked_statement(), record=issued.record,
            coordinator=read_armoured(RECORD, coordinator) if with_coordinator else b"",
            cert=issued.cert, crl=authority.crl() if is_broker else b"",
            rules=access_rules(authority.federation, revoked_names(authority, now)) if is_broker else "",
            standby=issued.standby,
        ),
        authority.keys,
    )  # fmt: skip
    authority.write(f"approvals/{request.name}.approval", armoured(APPROVAL, data))
    return data


def enrolled_devices(authority: Authority) -> int:
    """Count the devices that have a valid certificate."""
    return sum(e.part == "device" for e in authority.register.current_entries(authority.now()))


def enrolled_operators(authority: Authority) -> list[str]:
    """Return the names of the operators that have a valid certificate."""
    return [e.name for e in authority.register.current_entries(authority.now()) if e.part == OPERATOR]


def revoked_names(authority: Authority, now: int) -> set[str]:
    """Return the names that were revoked and have not been enrolled again."""
    current = {entry.name for entry in authority.register.current_entries(now)}
    return {
        e.name
        for e in authority.register.entries
        if e.revoked_at and e.part != CHECK and e.name not in current
    }
