"""The life of a certificate, at the root's folder: approve, renew, revoke; and the rotation of the root itself."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from protofleet.deploy.brokers.mosquitto import access_rules
from protofleet.deploy.enrol.approval import APPROVAL, Approval, issue_approval
from protofleet.deploy.enrol.authority import Authority, Issued, Root, make_root, with_roots
from protofleet.deploy.enrol.register import CHECK, Entry
from protofleet.deploy.enrol.request import Request, read_request
from protofleet.protocol.security.records import RECORD, day
from protofleet.protocol.security.statements import (
    StatementError,
    StatementFault,
    armoured,
    fingerprint,
    read_armoured,
)
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.wire.names import COORDINATOR

DAYS: Final = 365.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReviewedRequest:
    """A request that may be approved, once its fingerprint was compared."""

    request: Request
    data: bytes

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.data)


def review_request(
    authority: Authority, data: bytes, name: str = "", part: str = "device"
) -> ReviewedRequest:
    """A request for this name (empty: for any) and part: the sender does not choose what it becomes."""
    request = read_request(data)
    taken = authority.register.latest(request.name)
    if taken is not None and taken.part != request.part:
        words = f"{request.name} is the name of a {taken.part} already; take another for a {request.part}"
        raise StatementError(StatementFault.WRONG_ROLE, words)
    if request.part != part:
        raise StatementError(StatementFault.WRONG_ROLE, _other_part(request, part))
    if name and request.name != name:
        raise StatementError(
            StatementFault.WRONG_NAME, f"{name} was expected, the request is to be enrolled as {request.name}"
        )
    if request.federation != authority.federation:
        words = (
            f"{request.name} asks for federation {request.federation}, this root is of {authority.federation}"
        )
        raise StatementError(StatementFault.WRONG_FEDERATION, words)
    return ReviewedRequest(request, data)


def _other_part(request: Request, part: str) -> str:
    hosts = f" for {', '.join(request.hosts[:3])}" if request.hosts else ""
    words = f"{request.name} asks to be enrolled as a {request.part}{hosts}, not as a {part}"
    return f"{words}; if that is meant, `protofleet enrol approve --part {request.part}` approves it"


def approve(authority: Authority, asked: ReviewedRequest, days: float = DAYS, replace: bool = False) -> bytes:
    """The approval, also written to approvals/<name>.approval. An earlier record of the name stays good until
    it expires: the party may be in the middle of a run."""
    request = asked.request
    taken = authority.register.latest(request.name)
    if taken is not None and taken.holds(authority.now()) and not replace and not same_keys(authority, asked):
        words = f"{request.name} is enrolled with other keys"
        raise SettingsError(f"{words}; if they are really replaced, say --replace, else it is an intruder")
    root = issuing_root(authority, request)
    issued = authority.issue(request, days, asked.fingerprint, root)
    authority.keep(issued, asked.data)
    return _write_approval(authority, request, issued)


def same_keys(authority: Authority, asked: ReviewedRequest) -> bool:
    """As those that were approved last for this name; False where that request cannot be read any more."""
    new = asked.request
    try:
        held = review_request(authority, authority.request(new.name), new.name, new.part).request
    except StatementError:
        return False
    return (held.sign, held.receive, held.csr_key) == (new.sign, new.receive, new.csr_key)


def renew(authority: Authority, name: str, days: float = DAYS) -> bytes:
    """A later record and certificate for the keys that the party has."""
    latest = authority.register.latest(name)
    if latest is None:
        raise SettingsError(f"{name} has never been enrolled here; there are {enrolled_names(authority)}")
    if latest.revoked_at:
        words = f"{name} was revoked on {day(latest.revoked_at)}; it needs new keys: enrol request --new-keys"
        raise SettingsError(words)
    asked = review_request(authority, authority.request(name), name, latest.part)
    return approve(authority, asked, days)


def revoke(authority: Authority, name: str, reason: str, also: Iterable[int] = ()) -> list[Entry]:
    """All that was ever issued for the name, and the serial numbers in `also`."""
    now = authority.now()
    mine = [e for e in authority.register.entries if e.name == name and e.part != CHECK and e.holds(now)]
    if not mine:
        latest = authority.register.latest(name)
        state = f"is {latest.state(now)} already" if latest else "has never been enrolled here"
        raise SettingsError(f"{name} {state}; there are {enrolled_names(authority)}")
    authority.revoke({*(entry.serial for entry in mine), *also}, reason)
    (authority.folder / "records" / f"{name}.record").unlink(missing_ok=True)
    reissue_approvals(authority, "broker", "coordinator")
    return mine


def reissue_approvals(authority: Authority, *parts: str) -> list[str]:
    """The approvals again, with the present roots, lists and rules, for the certificates that hold."""
    reissued = []
    for entry in authority.register.holding(authority.now()):
        if parts and entry.part not in parts:
            continue
        try:
            _reissue(authority, entry)
        except StatementError as error:  # one bad request stops no other approval
            log.warning("%s gets no new approval: %s", entry.name, error)
        else:
            reissued.append(entry.name)
    return reissued


def _reissue(authority: Authority, entry: Entry) -> None:
    if entry.root not in authority.register.roots:  # it has ended meanwhile
        renew(authority, entry.name)
        return
    asked = review_request(authority, authority.request(entry.name), entry.name, entry.part)
    _write_approval(authority, asked.request, authority.issued(entry))


def issuing_root(authority: Authority, request: Request) -> Root:
    """During a rotation devices get the new root first. The coordinator, and then the brokers, follow when all
    that verify their certificates know the new root."""
    verified_by = {"device": (), "coordinator": ("device",), "broker": ("device", "coordinator")}[
        request.part
    ]
    return authority.roots[0 if verified_by and not_yet_rotated(authority, *verified_by) else -1]


def not_yet_rotated(authority: Authority, *parts: str) -> list[str]:
    """Names whose newest certificate is still of an older root."""
    newest, holding = authority.roots[-1].number, authority.register.holding(authority.now())
    return [e.name for e in holding if e.root != newest and (not parts or e.part in parts)]


def begin_rotation(authority: Authority, years: float) -> Authority:
    """From now on there are two roots. Each name follows with its next approval.

    Where there are two already, only the approvals are written again: they may be what a kill has left out.
    """
    register = authority.register
    if len(authority.roots) > 1:
        reissue_approvals(authority, "broker", "coordinator")
        return authority
    number = register.roots[-1] + 1
    make_root(authority.folder, authority.federation, number, years, authority.now(), durable=True)
    authority.register = with_roots(register, (*register.roots, number), authority.now())
    begun = _with_roots(authority, signed_by=[*authority.roots, authority.load_root(number)])
    reissue_approvals(begun, "broker", "coordinator")
    return begun


def finish_rotation(authority: Authority, force: bool) -> Authority:
    """From now on there is the new root alone; the private keys of the old one are destroyed.

    Where that is so already, only the approvals are written again: they may be what a kill has left out.
    """
    if authority.register.roots == (1,):
        raise SettingsError("there is one root; `enrol rotate` begins to replace it")
    if len(authority.roots) < 2:
        reissue_approvals(authority)
        return authority
    if (behind := not_yet_rotated(authority)) and not force:
        raise SettingsError(rotation_status(authority) + f"; --force leaves {len(behind)} behind")
    both, register = authority.roots, authority.register
    authority.register = with_roots(register, register.roots[1:], authority.now())
    finished = _with_roots(authority, signed_by=both)
    authority.destroy_ended()
    reissue_approvals(finished)
    return finished


def rotation_status(authority: Authority) -> str:
    behind = not_yet_rotated(authority)
    if not behind:
        return "all certificates are of the new root: `enrol rotate --finish` ends the old one"
    return f"still on the old root: {', '.join(behind)}; renew them (devices first), install, then --finish"


def enrolled_names(authority: Authority) -> str:
    return ", ".join(sorted({e.name for e in authority.register.entries if e.part != CHECK})) or "none yet"


def _with_roots(authority: Authority, signed_by: list[Root]) -> Authority:
    authority.roots = [root for root in signed_by if root.number in authority.register.roots]
    authority.save(signed_by)
    return authority


def _write_approval(authority: Authority, request: Request, issued: Issued) -> bytes:
    coordinator = authority.folder / "records" / f"{COORDINATOR}.record"
    is_broker, now = request.part == "broker", authority.now()
    wants_coordinator = request.part == "device" and coordinator.exists()
    data = issue_approval(
        Approval(
            authority.federation, request.name, request.part, issued.entry.serial,
            roots=authority.roots_statement(), revoked=authority.revoked_statement(), record=issued.record,
            coordinator=read_armoured(RECORD, coordinator) if wants_coordinator else b"",
            cert=issued.cert, crl=authority.crl() if is_broker else b"",
            rules=access_rules(authority.federation, revoked_names(authority, now)) if is_broker else "",
        ),
        authority.keys,
    )  # fmt: skip
    authority.write(f"approvals/{request.name}.approval", armoured(APPROVAL, data))
    return data


def revoked_names(authority: Authority, now: int) -> set[str]:
    """Names that were revoked and have not been enrolled again."""
    holding = {entry.name for entry in authority.register.holding(now)}
    return {
        e.name
        for e in authority.register.entries
        if e.revoked_at and e.part != CHECK and e.name not in holding
    }
