"""Manage the operator's folder: the federation's offline root of trust, and everything that the root has issued.

roots/1/root.key    Ed25519: signs records, lists and approvals    } for offline keeping,
roots/1/tls-ca.key  P-256: signs TLS certificates and their list   } readable by the owner alone
roots/1/tls-ca.crt
roots.statement  revoked.statement  register.json
allowed_signers  allowed_signers.sig       the same roots in the form that ssh-keygen on the hosts reads
requests/ records/ certs/ approvals/       all public
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import itertools
import logging
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet.federation.enrol import certificates
from protofleet.federation.enrol.certificates import DER, PEM
from protofleet.federation.enrol.lock import RegisterLock
from protofleet.federation.enrol.register import (
    CHECK,
    REGISTER,
    STANDBY_PART,
    Register,
    RegisterEntry,
    load_register,
    lost,
    save_register,
)
from protofleet.federation.enrol.request import REQUEST, Request
from protofleet.federation.enrol.ssh_signatures import ROOTS_NAMESPACE, allowed_signers, sign
from protofleet.protocol.security.keyfiles import read_identity, read_tls, write_file, write_private
from protofleet.protocol.security.operators import OPERATOR, OperatorRecord, issue_operator, read_operator
from protofleet.protocol.security.records import (
    RECORD,
    REVOCATIONS,
    Record,
    Revocations,
    issue_record,
    issue_revocations,
)
from protofleet.protocol.security.statements import armoured, fingerprint, read_armoured
from protofleet.protocol.security.trust import ROOTS, Roots, first_roots, issue_roots
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.wire.names import COORDINATOR, STANDBY, valid_name

ROOTS_FILE: Final = "roots.statement"
REVOKED_FILE: Final = "revoked.statement"
SIGNERS_FILE: Final = "allowed_signers"
SIGNATURES_FILE: Final = "allowed_signers.sig"
PRIVATE_KEYS: Final = ("tls-ca.key", "root.key")
DAY: Final = 86_400
SKEW: Final = 3600  # Number of seconds that a device's clock may be behind.

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Root:
    number: int
    key: Ed25519PrivateKey
    tls_ca: certificates.TlsCa

    @property
    def public(self) -> bytes:
        return self.key.public_key().public_bytes_raw()


@dataclass(frozen=True, slots=True)
class IssuedCertificate:
    entry: RegisterEntry
    record: bytes  # The signed record, or the signed statement of an operator; b"" for a broker.
    cert: bytes  # The certificate in the form DER.
    standby: bytes = b""  # The coordinator's second certificate in the form DER.


class Authority:
    """The folder with the root's private keys. `durable=False` skips fsync, which a simulated fleet does not need."""

    def __init__(self, folder: Path, durable: bool = True, clock: Callable[[], float] = time.time) -> None:
        self.folder, self.durable, self._clock, self._lock = folder, durable, clock, RegisterLock(folder)
        self.register, self._batching = load_register(folder), False
        # A register of an earlier version does not know the serial numbers in its revocation lists. So new lists are
        # made.
        if self.register.listed is None:
            self.register = self.register.with_revocation_lists(self.now())
        self.roots = [_load_root(folder, number) for number in self.register.roots]
        self._complete_interrupted_rotation()

    def _complete_interrupted_rotation(self) -> None:
        """Complete a rotation that was interrupted.

        A rotation writes the register first. If the other files are older than the register, they are made again.
        """
        path = self.folder / ROOTS_FILE
        if not path.exists():
            return
        statement = first_roots(read_armoured(ROOTS, path))
        if statement.version < self.register.roots_version:
            known = {*statement.keys, *(root.public for root in self.roots)}
            stored = [_load_root(self.folder, number) for number in _stored_roots(self.folder)]
            self.save([root for root in stored if root.public in known])
        self.destroy_retired_keys()

    def destroy_retired_keys(self) -> None:
        """Delete the private keys of retired roots.

        The caller must first write the new roots statement to the disk.
        """
        for number in _stored_roots(self.folder):
            if number < self.register.roots[0]:
                for name in PRIVATE_KEYS:
                    (self.folder / "roots" / str(number) / name).unlink(missing_ok=True)

    @property
    def federation(self) -> str:
        return self.register.federation

    @property
    def fingerprint(self) -> str:
        """Return the newest root's fingerprint.

        When a device is enrolled, its owner checks this fingerprint.
        """
        return fingerprint(self.roots[-1].public)

    @property
    def keys(self) -> list[Ed25519PrivateKey]:
        return [root.key for root in self.roots]

    def now(self) -> int:
        return int(self._clock())

    def issue(
        self, request: Request, days: float, fingerprint: str, root: Root, grants: frozenset[str] = frozenset()
    ) -> IssuedCertificate:  # fmt: skip
        """Issue a record and a TLS certificate with the same serial number; only an operator has grants."""
        now = self.now()
        since, until = now - SKEW, int(now + days * DAY)
        if days <= 0:
            raise SettingsError(f"--days is {days:g}, it must be above 0")
        limit = int(root.tls_ca.cert.not_valid_after_utc.timestamp())
        if until > limit:
            raise SettingsError(
                f"{days:g} days end after root {root.number} expires; rotate the root first, or set fewer --days"
            )
        # The serial number depends on the time, so it is new even after an old backup was restored.
        serial = max(self.register.last_serial + 1, 1000 * now)
        entry = RegisterEntry(serial, request.name, request.part, root.number, since, until, fingerprint)
        csr = certificates.read_csr(request.csr, request.name)
        validity = (_utc(since), _utc(until))
        cert = certificates.issue_for_request(root.tls_ca, csr, request.name, request.hosts, serial, validity)
        record = b"" if request.part == "broker" else self._record(request, entry, root, grants)
        self.register = self.register.with_entry(entry)
        return IssuedCertificate(entry, record, cert.public_bytes(DER))

    def with_new_standby(self, issued: IssuedCertificate, request: Request, root: Root) -> IssuedCertificate:
        """Return the coordinator's certificate with a second one: the same key and validity under the name STANDBY.

        Under the coordinator's own name, a process that does not lead would end the connection of the process that
        leads.
        """
        taken = self.register.latest(STANDBY)
        if taken is not None and taken.part != STANDBY_PART and taken.is_valid(self.now()):
            log.warning("%s gets no second certificate, because %s is a %s", COORDINATOR, STANDBY, taken.part)
            return issued
        serial = max(self.register.last_serial + 1, 1000 * self.now())
        entry = replace(issued.entry, serial=serial, name=STANDBY, part=STANDBY_PART)
        csr = certificates.read_csr(request.csr, request.name)
        validity = (_utc(entry.not_before), _utc(entry.not_after))
        cert = certificates.issue_for_request(root.tls_ca, csr, STANDBY, (), serial, validity)
        self.register = self.register.with_entry(entry)
        return replace(issued, standby=cert.public_bytes(DER))

    def issue_check_certificate(
        self, name: str, key: certificates.PublicKey, seconds: int
    ) -> tuple[int, bytes]:
        """Issue a short-lived client certificate with any name, for our own connections to the broker.

        Return its serial number and the certificate in PEM.
        """
        now, root = self.now(), self.roots[0]
        serial = max(self.register.last_serial + 1, 1000 * now)
        entry = RegisterEntry(serial, name, CHECK, root.number, now - SKEW, now + seconds, "")
        validity = (_utc(entry.not_before), _utc(entry.not_after))
        cert = certificates.issue_certificate(root.tls_ca, key, name, (), serial, validity)
        self.register = self.register.with_entry(entry).without_expired_checks(now)
        return serial, cert.public_bytes(PEM)

    def _record(self, request: Request, entry: RegisterEntry, root: Root, grants: frozenset[str]) -> bytes:
        assert request.part != "broker"
        if request.part == OPERATOR:
            operator = OperatorRecord(
                self.federation, request.name, request.sign, request.receive, entry.serial, entry.not_before,
                entry.not_after, grants,
            )  # fmt: skip
            return issue_operator(operator, root.key)
        record = Record(
            self.federation, request.name, request.part, request.sign, request.receive,
            entry.serial, entry.not_before, entry.not_after,
        )  # fmt: skip
        return issue_record(record, root.key)

    def load_root(self, number: int) -> Root:
        return _load_root(self.folder, number)

    def revoke(self, serials: set[int], reason: str) -> None:
        self.register = self.register.with_revoked(serials, self.now(), reason)
        self.save()

    def save(self, signed_by: Iterable[Root] = ()) -> None:
        """Save the register and then the statements; `signed_by` are the roots that sign the roots statement.

        The register is written first, so that each certificate in another file is also in the register.
        """
        if self._batching:
            return
        with self._lock.held():
            save_register(self.folder, self.register, self.durable)
            roots = self.roots_statement(signed_by)
            # The file of allowed signers is written first, because a retired root signs it too. The keys of this root
            # may be destroyed as soon as the roots statement is on the disk.
            text, signatures = self.allowed_signers(roots, signed_by)
            self.write(SIGNATURES_FILE, signatures)
            self.write(SIGNERS_FILE, text)
            self.write(ROOTS_FILE, armoured(ROOTS, roots))
            self.write(REVOKED_FILE, armoured(REVOCATIONS, self.revoked_statement()))

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """Save only once, at the end of the block, instead of once for each certificate."""
        with self._lock.held():
            self._batching = True
            try:
                yield
            finally:
                self._batching = False
                self.save()

    def store(self, issued: IssuedCertificate, request: bytes) -> None:
        """Write the issued certificate and its request. Later approvals need the stored request."""
        name = issued.entry.name
        with self._lock.held():
            self.write(f"requests/{name}.request", armoured(REQUEST, request))
            self.write(f"certs/{name}.crt", _pem(issued.cert))
            if issued.standby:
                self.write(f"certs/{STANDBY}.crt", _pem(issued.standby))
            if issued.record:
                path, kind = self.record_of(issued.entry)
                self.write(str(path.relative_to(self.folder)), armoured(kind, issued.record))
            self.save()

    def record_of(self, entry: RegisterEntry) -> tuple[Path, str]:
        """Return the file and the kind of the statement that the coordinator needs about this name."""
        kind = OPERATOR if entry.part == OPERATOR else RECORD
        return self.folder / "records" / f"{entry.name}.{kind}", kind

    def grants_of(self, name: str) -> frozenset[str]:
        """Return the grants of the operator's last statement; none if the name has no such statement."""
        path = self.folder / "records" / f"{name}.{OPERATOR}"
        keys = [root.public for root in self.roots]
        return read_operator(read_armoured(OPERATOR, path), keys).grants if path.exists() else frozenset()

    def stored_request(self, name: str) -> bytes:
        return read_armoured(REQUEST, self.folder / "requests" / f"{name}.request")

    def stored_certificate(self, entry: RegisterEntry) -> IssuedCertificate:
        path, kind = self.record_of(entry)
        cert = self._stored_x509(entry.name).public_bytes(DER)
        standby = self._stored_standby() if entry.part == COORDINATOR else b""
        return IssuedCertificate(entry, read_armoured(kind, path) if path.exists() else b"", cert, standby)

    def _stored_standby(self) -> bytes:
        """Return the coordinator's second certificate, or b"" if there is no valid one.

        A certificate that is not in the register could not be revoked. An interrupted command may have left one.
        """
        entry = self.register.latest(STANDBY)
        if entry is None or entry.part != STANDBY_PART or not entry.is_valid(self.now()):
            return b""
        cert = self._stored_x509(STANDBY)
        return cert.public_bytes(DER) if cert.serial_number == entry.serial else b""

    def _stored_x509(self, name: str) -> x509.Certificate:
        return x509.load_pem_x509_certificate((self.folder / "certs" / f"{name}.crt").read_bytes())

    def write(self, name: str, text: str) -> Path:
        write_file(self.folder / name, text.encode(), durable=self.durable)
        return self.folder / name

    def roots_statement(self, signed_by: Iterable[Root] = ()) -> bytes:
        path = self.folder / ROOTS_FILE
        if not signed_by and path.exists():
            return read_armoured(ROOTS, path)
        roots = Roots(
            self.federation,
            self.register.roots_version,
            tuple(root.public for root in self.roots),
            tuple(root.tls_ca.cert.public_bytes(DER) for root in self.roots),
        )
        return issue_roots(roots, [root.key for root in signed_by or self.roots])

    def allowed_signers(self, roots: bytes = b"", signed_by: Iterable[Root] = ()) -> tuple[str, str]:
        """Return the file of allowed signers for the statement of the roots, and the signatures of the file.

        A retired root cannot sign again. So the stored signatures are used as long as the file is unchanged.
        """
        statement = roots or self.roots_statement()
        digest = hashlib.sha256(armoured(ROOTS, statement).encode()).hexdigest()
        text = allowed_signers(first_roots(statement), digest)
        signers, signatures = self.folder / SIGNERS_FILE, self.folder / SIGNATURES_FILE
        if signers.exists() and signatures.exists() and signers.read_text() == text:
            return text, signatures.read_text()
        return text, sign(ROOTS_NAMESPACE, text.encode(), [root.key for root in signed_by or self.roots])

    def revoked_statement(self) -> bytes:
        listed = frozenset(self.register.listed or ())
        return issue_revocations(Revocations(self.federation, self.register.version, listed), self.keys)

    def crl(self) -> bytes:
        """Return one revocation list for each CA in use.

        If a CA has no list, Mosquitto refuses all certificates of this CA.
        """
        # The version is a Unix time. The version may be later than the present time, because several versions were
        # made in one second, or because the clock was wrong once.
        issued_at = _utc(min(self.register.version, self.now() + SKEW // 2))
        serials = self.register.listed or ()
        return b"".join(certificates.revocation_list(root.tls_ca, serials, issued_at) for root in self.roots)

    def ca_bundle(self) -> bytes:
        return b"".join(root.tls_ca.cert.public_bytes(PEM) for root in self.roots)


def make_authority(
    folder: Path, federation: str, years: float, durable: bool = True, clock: Callable[[], float] = time.time
) -> Authority:
    if (folder / REGISTER).exists() or (folder / "roots" / "1").exists():
        raise SettingsError(
            f"{folder} holds a root already; use another folder, or replace this root with `enrol rotate`"
        )
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    make_root(folder, valid_name(federation), 1, years, clock(), durable)
    save_register(folder, Register(federation).with_revocation_lists(int(clock())), durable)
    authority = Authority(folder, durable, clock)
    authority.save()
    return authority


def make_root(folder: Path, federation: str, number: int, years: float, now: float, durable: bool) -> None:
    if not 0 < years <= 50:
        raise SettingsError(f"--years is {years:g}, it must be above 0 and at most 50")
    target = folder / "roots" / str(number)
    temporary = target.with_name(f"{number}.new")
    if temporary.exists():  # An earlier command was killed and has not removed this folder.
        shutil.rmtree(temporary)
    temporary.mkdir(parents=True, mode=0o700)
    until = _utc(int(now + years * 365.25 * DAY))
    tls = certificates.new_tls_ca(federation, number, _utc(int(now)), until)
    write_private(temporary / "root.key", Ed25519PrivateKey.generate(), durable)
    write_private(temporary / "tls-ca.key", tls.key, durable)
    write_file(temporary / "tls-ca.crt", tls.cert.public_bytes(PEM), durable=durable)
    _rename_unused(target)
    Disk(durable).place(temporary, target)


def _rename_unused(target: Path) -> None:
    """Rename a root that is not in the register.

    A killed command may have made the root, or the register may be from a backup that is older than the root.
    """
    if target.exists():
        names = (target.with_name(f"{target.name}.unused-{i}") for i in itertools.count(1))
        unused = next(name for name in names if not name.exists())
        target.rename(unused)
        log.warning("the register does not list %s; this folder was renamed to %s", target, unused.name)


def _stored_roots(folder: Path) -> list[int]:
    """Return the numbers of the roots for which this folder has at least one private key."""
    folders = [p for p in (folder / "roots").iterdir() if p.name.isdigit()]
    return sorted(int(p.name) for p in folders if any((p / name).exists() for name in PRIVATE_KEYS))


def _load_root(folder: Path, number: int) -> Root:
    root = folder / "roots" / str(number)
    for name in (*PRIVATE_KEYS, "tls-ca.crt"):
        if not (root / name).exists():
            raise lost(root / name, folder)
    key = read_identity(root / "root.key")
    ca = read_tls(root / "tls-ca.key")
    try:
        cert = x509.load_pem_x509_certificate((root / "tls-ca.crt").read_bytes())
    except (OSError, ValueError) as error:
        raise SettingsError(f"{root / 'tls-ca.crt'} cannot be used: {error}") from None
    return Root(number, key, certificates.TlsCa(cert, ca))


def _pem(cert: bytes) -> str:
    return x509.load_der_x509_certificate(cert).public_bytes(PEM).decode()


def _utc(seconds: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(seconds, dt.timezone.utc)


def with_roots(register: Register, roots: tuple[int, ...], now: int) -> Register:
    """Return the register with another set of roots, and with new lists.

    The lists change too, because each root signs them.
    """
    # Like a serial number, the version depends on the time, so it is new even after an old backup was restored.
    version = max(register.roots_version + 1, now)
    return replace(register, roots=roots, roots_version=version).with_revocation_lists(now)
