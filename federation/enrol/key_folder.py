"""Make requests and install approvals in the key folder of a device, coordinator, broker or operator.

<folder>/pending/  private keys and the request for them, until the approval is installed
<folder>/set<N>/   the same keys and the approved files; <folder>/current is a link to the newest set

The private keys never leave this machine.
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

from protofleet.federation.brokers.mosquitto import ACL_FILE, CRL_FILE
from protofleet.federation.enrol import certificates
from protofleet.federation.enrol.approval import APPROVAL, Approval, read_approval, unverified_roots
from protofleet.federation.enrol.certificates import PEM
from protofleet.federation.enrol.request import REQUEST, PrivateKeys, Request, new_request
from protofleet.protocol.security.enrolment import (
    CURRENT,
    IDENTITY_KEY,
    OWN_OPERATOR,
    OWN_RECORD,
    RECEIVE_KEY,
    REVOKED_FILE,
    ROOTS_FILE,
    STANDBY_CERT,
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
from protofleet.protocol.security.operators import OPERATOR, OperatorRecord, admit_operator
from protofleet.protocol.security.records import RECORD, REVOCATIONS, Record, Revocations
from protofleet.protocol.security.statements import (
    StatementError,
    StatementFault,
    armoured,
    fingerprint,
    read_armoured,
    same_fingerprint,
)
from protofleet.protocol.security.trust import ROOTS, Roots, Trust, first_roots
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.wire.names import COORDINATOR

PENDING: Final = "pending"
KEPT_SETS: Final = 2  # The present set of files, and the previous set, which a process may still read.

# The function gets the fingerprint of a root that is not known here yet. It returns True if the fingerprint is right.
Confirm = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Installation:
    approval: Approval
    folder: Path
    until: str


def make_request(
    folder: Path, federation: str, name: str, hosts: tuple[str, ...], new_keys: bool, durable: bool = True,
    part: str = "",
) -> tuple[Request, bytes]:  # fmt: skip
    """Make a request with the keys in the folder or with new keys.

    The keys and the request stay in `pending`, and the keys in use do not change until the approval is
    installed.
    """
    pending, current = folder / PENDING, folder / CURRENT
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    pending.mkdir(mode=0o700, exist_ok=True)
    source = pending if (pending / TLS_KEY).exists() else current
    if new_keys or not (source / TLS_KEY).exists():
        keys = PrivateKeys(Ed25519PrivateKey.generate(), X25519PrivateKey.generate(), certificates.new_key())
    else:
        keys = load_keys(source)
    write_private(pending / IDENTITY_KEY, keys.identity, durable)
    write_private(pending / RECEIVE_KEY, keys.receive, durable)
    write_private(pending / TLS_KEY, keys.tls, durable)
    try:
        request, data = new_request(federation, name, hosts, keys, part)
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
) -> Installation:
    """Verify an approval, and then replace all installed keys and files in one step.

    If the approval is bad, StatementError is raised and no file is changed.
    """
    trust, approval = verified_approval(folder, data, confirm)
    if federation and approval.federation != federation:
        message = f"the approval is for the federation {approval.federation}, but not for {federation}"
        raise StatementError(StatementFault.WRONG_FEDERATION, message)
    if current_serial(folder) > approval.serial:
        message = (
            f"approval {approval.serial} is older than approval {current_serial(folder)}, which is installed"
        )
        raise StatementError(StatementFault.SUPERSEDED, message)
    keys, source = _matching_keys(folder, approval, trust, now)
    target = _next_set(folder)
    _write_set(target, approval, keys, trust, durable)
    _chown_like_folder(folder, target)
    _switch_current(folder, target.name, durable)
    _remove_used(folder, source)
    cert = x509.load_der_x509_certificate(approval.cert)
    return Installation(approval, folder / CURRENT, f"{cert.not_valid_after_utc:%Y-%m-%d %H:%M} UTC")


def verified_approval(folder: Path, data: bytes, confirm: Confirm) -> tuple[Trust, Approval]:
    """Check that a known root has signed the approval; return the trust and the approval.

    Before the first approval, no root is known, so a person must confirm the root's fingerprint.
    """
    claimed = unverified_roots(data)
    if (folder / CURRENT).exists():
        trust = load_trust(folder / CURRENT).with_roots(claimed)
        approval = read_approval(data, trust.roots.keys)
    else:
        trust = _confirmed_root(first_roots(claimed), confirm)
        # The root whose fingerprint was confirmed must have signed the approval.
        approval = read_approval(data, trust.roots.keys[-1:])
    return trust.with_revocations(approval.revoked), approval


def _confirmed_root(roots: Roots, confirm: Confirm) -> Trust:
    if not confirm(fingerprint(roots.keys[-1])):
        raise StatementError(
            StatementFault.UNKNOWN_ROOT,
            "the root's fingerprint was not confirmed, or is not the expected one",
        )
    return Trust(roots, Revocations(roots.federation))


def current_serial(folder: Path) -> int:
    """Return the serial number of the certificate in use; 0 if there is none."""
    path = folder / CURRENT / TLS_CERT
    return x509.load_pem_x509_certificate(path.read_bytes()).serial_number if path.exists() else 0


def _matching_keys(folder: Path, approval: Approval, trust: Trust, now: float) -> tuple[PrivateKeys, Path]:
    """Return the private keys for which the approval was issued, and the folder of these keys."""
    for source in (folder / PENDING, folder / CURRENT):
        if not (source / TLS_KEY).exists():
            continue
        keys = load_keys(source)
        if _matches_keys(keys, approval, trust, now):
            return keys, source
    message = f"the approval of {approval.name} is for keys that are not in {folder}"
    raise StatementError(StatementFault.WRONG_KEYS, f"{message}; was another request approved?")


def _matches_keys(keys: PrivateKeys, approval: Approval, trust: Trust, now: float) -> bool:
    certs = [cert for cert in (approval.cert, approval.standby) if cert]
    if not all(certificates.has_key(x509.load_der_x509_certificate(cert), keys.tls) for cert in certs):
        return False
    if not approval.record:  # A broker has no record.
        return True
    record: Record | OperatorRecord
    if approval.part == OPERATOR:
        record = admit_operator(trust, approval.record, now, name=approval.name)
    else:
        record = trust.admit(approval.record, now, name=approval.name)
    own = (keys.identity.public_key().public_bytes_raw(), keys.receive.public_key().public_bytes_raw())
    return (record.sign, record.receive) == own


def _write_set(target: Path, approval: Approval, keys: PrivateKeys, trust: Trust, durable: bool) -> None:
    target.mkdir(mode=0o700)
    write_private(target / IDENTITY_KEY, keys.identity, durable)
    write_private(target / RECEIVE_KEY, keys.receive, durable)
    write_private(target / TLS_KEY, keys.tls, durable)
    authorities = [x509.load_der_x509_certificate(der) for der in trust.roots.authorities]
    files = {
        TLS_CERT: x509.load_der_x509_certificate(approval.cert).public_bytes(PEM),
        TLS_CA: b"".join(cert.public_bytes(PEM) for cert in authorities),
        ROOTS_FILE: armoured(ROOTS, approval.roots).encode(),
        REVOKED_FILE: armoured(REVOCATIONS, approval.revoked).encode(),
    }
    if approval.record:
        name, kind = (OWN_OPERATOR, OPERATOR) if approval.part == OPERATOR else (OWN_RECORD, RECORD)
        files[name] = armoured(kind, approval.record).encode()
    if approval.standby:
        files[STANDBY_CERT] = x509.load_der_x509_certificate(approval.standby).public_bytes(PEM)
    if approval.coordinator:
        files[f"{COORDINATOR}.record"] = armoured(RECORD, approval.coordinator).encode()
    for name, text in files.items():
        write_file(target / name, text, durable=durable)
    if approval.part == "broker":
        write_file(target / CRL_FILE, approval.crl, durable=durable)
        write_file(target / ACL_FILE, approval.rules.encode(), PRIVATE, durable)


def _chown_like_folder(folder: Path, target: Path) -> None:
    """Give the new files to the folder's owner, because root may install them for a service of another user."""
    owner = folder.stat()
    if os.geteuid() == 0 and owner.st_uid != 0:
        for path in (target, *target.iterdir()):
            os.chown(path, owner.st_uid, owner.st_gid)


def _switch_current(folder: Path, name: str, durable: bool) -> None:
    link = folder / ".current"
    link.unlink(missing_ok=True)
    link.symlink_to(name)
    Disk(durable).place(link, folder / CURRENT)


def _remove_used(folder: Path, used: Path) -> None:
    """Remove the pending keys, because the new set contains them too; keep only the two newest sets."""
    if used.name == PENDING:
        shutil.rmtree(used)
    for old in _all_sets(folder)[:-KEPT_SETS]:
        shutil.rmtree(old)


def _all_sets(folder: Path) -> list[Path]:
    return sorted((p for p in folder.glob("set*") if p.name[3:].isdigit()), key=lambda p: int(p.name[3:]))


def _next_set(folder: Path) -> Path:
    """Return the folder of the next set; remove all sets newer than `current`, because they are incomplete."""
    current = folder / CURRENT
    number = int(current.readlink().name[3:]) if current.is_symlink() else 0
    for incomplete in _all_sets(folder):
        if int(incomplete.name[3:]) > number:
            shutil.rmtree(incomplete)
    return folder / f"set{number + 1}"


def read_approval_file(path: Path) -> bytes:
    return read_armoured(APPROVAL, path)


def expect_fingerprint(wanted: str) -> Confirm:
    """Return a function that confirms only this fingerprint, without asking a person."""
    return lambda seen: same_fingerprint(seen, wanted)
