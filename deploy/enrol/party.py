"""On the machine that joins: keys are made here and stay here; a request goes out, an approval comes in.

<folder>/pending/    keys and the request that was made of them, until it is approved
<folder>/v<serial>/  what came of it; <folder>/current is a link to the newest
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from protofleet.deploy.brokers.mosquitto import REVOKED, RULES
from protofleet.deploy.enrol import certificates
from protofleet.deploy.enrol.approvals import APPROVAL, Approval, read_approval, roots_within
from protofleet.deploy.enrol.certificates import PEM
from protofleet.deploy.enrol.requests import REQUEST, PrivateKeys, Request, new_request
from protofleet.protocol.security.enrolment import (
    CURRENT,
    IDENTITY_KEY,
    OWN_RECORD,
    RECEIVE_KEY,
    REVOKED_FILE,
    ROOTS_FILE,
    TLS_CA,
    TLS_CERT,
    TLS_KEY,
    load_trust,
)
from protofleet.protocol.security.keyfiles import (
    PRIVATE,
    read_identity,
    read_receive,
    read_tls,
    write_file,
    write_private,
)
from protofleet.protocol.security.records import RECORD, REVOCATIONS, Revocations
from protofleet.protocol.security.statements import (
    StatementError,
    Why,
    armoured,
    fingerprint,
    read_armoured,
    same_fingerprint,
)
from protofleet.protocol.security.trust import ROOTS, Roots, Trust, first_roots
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.storage.disk import sync
from protofleet.protocol.wire.names import COORDINATOR

PENDING: Final = "pending"
KEPT: Final = 2  # sets of files: who is just reading the one before shall find all of it

Confirm = Callable[[str], bool]  # shown the fingerprint of a root that nobody vouches for


@dataclass(frozen=True, slots=True)
class Installed:
    approval: Approval
    folder: Path
    until: str


def make_request(
    folder: Path, federation: str, name: str, hosts: tuple[str, ...], fresh: bool, durable: bool = True
) -> tuple[Request, bytes]:
    """Keys that are here are used again, unless they shall be fresh. They wait beside those in use."""
    pending, current = folder / PENDING, folder / CURRENT
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    pending.mkdir(mode=0o700, exist_ok=True)
    source = pending if (pending / TLS_KEY).exists() else current
    if fresh or not (source / TLS_KEY).exists():
        keys = PrivateKeys(Ed25519PrivateKey.generate(), X25519PrivateKey.generate(), certificates.new_key())
    else:
        keys = load_keys(source)
    write_private(pending / IDENTITY_KEY, keys.identity, durable)
    write_private(pending / RECEIVE_KEY, keys.receive, durable)
    write_private(pending / TLS_KEY, keys.tls, durable)
    try:
        request, data = new_request(federation, name, hosts, keys)
    except ValueError as error:
        raise SettingsError(str(error)) from None
    write_file(pending / REQUEST, armoured(REQUEST, data).encode(), durable=durable)
    return request, data


def load_keys(folder: Path) -> PrivateKeys:
    return PrivateKeys(
        read_identity(folder / IDENTITY_KEY), read_receive(folder / RECEIVE_KEY), read_tls(folder / TLS_KEY)
    )


def install(
    folder: Path, data: bytes, confirm: Confirm, now: float, durable: bool = True, federation: str = ""
) -> Installed:
    """Believe an approval, or raise StatementError with nothing changed; then put it to use at one moment."""
    trust, approval = believed(folder, data, confirm)
    if federation and approval.federation != federation:
        words = f"the approval is for federation {approval.federation}, not for {federation}"
        raise StatementError(Why.WRONG_FEDERATION, words)
    if current_serial(folder) > approval.serial:
        words = f"approval {approval.serial} is older than {current_serial(folder)}, which is installed"
        raise StatementError(Why.SUPERSEDED, words)
    keys, source = _keys_of(folder, approval, trust, now)
    target = _next_set(folder)
    _fill(target, approval, keys, trust, durable)
    _give_like(folder, target)
    _point(folder, target.name, durable)
    _tidy(folder, source)
    cert = x509.load_der_x509_certificate(approval.cert)
    return Installed(approval, folder / CURRENT, f"{cert.not_valid_after_utc:%Y-%m-%d %H:%M} UTC")


def believed(folder: Path, data: bytes, confirm: Confirm) -> tuple[Trust, Approval]:
    """What the roots that we hold have signed; the first time, a person compares the root's fingerprint."""
    told = roots_within(data)
    if (folder / CURRENT).exists():
        trust = load_trust(folder / CURRENT).with_roots(told)
        approval = read_approval(data, trust.roots.keys)
    else:
        trust = _compared(first_roots(told), confirm)
        approval = read_approval(data, trust.roots.keys[-1:])  # all of it by the very root that was compared
    return trust.with_revocations(approval.revoked), approval


def _compared(roots: Roots, confirm: Confirm) -> Trust:
    if not confirm(fingerprint(roots.keys[-1])):
        raise StatementError(Why.UNKNOWN_ROOT, "the root's fingerprint is not the one you compared it with")
    return Trust(roots, Revocations(roots.federation))


def current_serial(folder: Path) -> int:
    """Of the certificate in use; 0 where there is none."""
    path = folder / CURRENT / TLS_CERT
    return x509.load_pem_x509_certificate(path.read_bytes()).serial_number if path.exists() else 0


def _keys_of(folder: Path, approval: Approval, trust: Trust, now: float) -> tuple[PrivateKeys, Path]:
    """The private keys here that the approval was made out to, and where they are."""
    for place in (folder / PENDING, folder / CURRENT):
        if not (place / TLS_KEY).exists():
            continue
        keys = load_keys(place)
        if _fits(keys, approval, trust, now):
            return keys, place
    words = f"the approval of {approval.name} is made out to keys that are not in {folder}"
    raise StatementError(Why.WRONG_KEYS, f"{words}; was another request approved?")


def _fits(keys: PrivateKeys, approval: Approval, trust: Trust, now: float) -> bool:
    if not certificates.same_key(x509.load_der_x509_certificate(approval.cert), keys.tls):
        return False
    if not approval.record:  # a broker has none
        return True
    record = trust.admit(approval.record, now, name=approval.name)
    mine = (keys.identity.public_key().public_bytes_raw(), keys.receive.public_key().public_bytes_raw())
    return (record.sign, record.receive) == mine


def _fill(place: Path, approval: Approval, keys: PrivateKeys, trust: Trust, durable: bool) -> None:
    place.mkdir(mode=0o700)
    write_private(place / IDENTITY_KEY, keys.identity, durable)
    write_private(place / RECEIVE_KEY, keys.receive, durable)
    write_private(place / TLS_KEY, keys.tls, durable)
    authorities = [x509.load_der_x509_certificate(der) for der in trust.roots.authorities]
    files = {
        TLS_CERT: x509.load_der_x509_certificate(approval.cert).public_bytes(PEM),
        TLS_CA: b"".join(cert.public_bytes(PEM) for cert in authorities),
        ROOTS_FILE: armoured(ROOTS, approval.roots).encode(),
        REVOKED_FILE: armoured(REVOCATIONS, approval.revoked).encode(),
    }
    if approval.record:
        files[OWN_RECORD] = armoured(RECORD, approval.record).encode()
    if approval.coordinator:
        files[f"{COORDINATOR}.record"] = armoured(RECORD, approval.coordinator).encode()
    for name, text in files.items():
        write_file(place / name, text, durable=durable)
    if approval.part == "broker":
        write_file(place / REVOKED, approval.crl, durable=durable)
        write_file(place / RULES, approval.rules.encode(), PRIVATE, durable)


def _give_like(folder: Path, target: Path) -> None:
    """Root installs for a service that runs as somebody else: whoever owns the folder owns what is in it."""
    owner = folder.stat()
    if os.geteuid() == 0 and owner.st_uid != 0:
        for path in (target, *target.iterdir()):
            os.chown(path, owner.st_uid, owner.st_gid)


def _point(folder: Path, name: str, durable: bool) -> None:
    link = folder / ".current"
    link.unlink(missing_ok=True)
    link.symlink_to(name)
    link.replace(folder / CURRENT)
    if durable:
        sync(folder)


def _tidy(folder: Path, used: Path) -> None:
    """Forget what is used up: private keys that no certificate in use belongs to any more."""
    if used.name == PENDING:
        shutil.rmtree(used)
    for place in _sets(folder)[:-KEPT]:
        shutil.rmtree(place)


def _sets(folder: Path) -> list[Path]:
    return sorted((p for p in folder.glob("set*") if p.name[3:].isdigit()), key=lambda p: int(p.name[3:]))


def _next_set(folder: Path) -> Path:
    """Where the next set of files is written. What lies behind `current` was broken off while being written."""
    current = folder / CURRENT
    number = int(current.readlink().name[3:]) if current.is_symlink() else 0
    for place in _sets(folder):
        if int(place.name[3:]) > number:
            shutil.rmtree(place)
    return folder / f"set{number + 1}"


def read_approval_file(path: Path) -> bytes:
    return read_armoured(APPROVAL, path)


def expecting(wanted: str) -> Confirm:
    """For scripts: the fingerprint that the operator told by another way."""
    return lambda seen: same_fingerprint(seen, wanted)
