"""The operator's folder: the federation's offline root and what it has issued.

roots/1/root.key    Ed25519: signs records, lists and approvals    } for offline keeping,
roots/1/tls-ca.key  P-256: signs TLS certificates and their list   } readable by the owner alone
roots/1/tls-ca.crt
roots.statement  revoked.statement  register.json
requests/ records/ certs/ approvals/       all public
"""

from __future__ import annotations

import contextlib
import datetime as dt
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

from protofleet.deploy.enrol import certificates
from protofleet.deploy.enrol.certificates import DER, PEM
from protofleet.deploy.enrol.lock import RegisterLock
from protofleet.deploy.enrol.register import CHECK, REGISTER, Entry, Register, load_register, save_register
from protofleet.deploy.enrol.request import REQUEST, Request
from protofleet.protocol.security.keyfiles import read_identity, read_tls, write_file, write_private
from protofleet.protocol.security.records import (
    RECORD,
    REVOCATIONS,
    Record,
    Revocations,
    issue_record,
    issue_revocations,
)
from protofleet.protocol.security.statements import armoured, fingerprint, read_armoured, signer
from protofleet.protocol.security.trust import ROOTS, Roots, first_roots, issue_roots
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.storage.disk import sync
from protofleet.protocol.wire.names import valid_name

ROOTS_FILE: Final = "roots.statement"
REVOKED_FILE: Final = "revoked.statement"
PRIVATE_KEYS: Final = ("tls-ca.key", "root.key")
DAY: Final = 86_400
SKEW: Final = 3600  # seconds that a device's clock may be behind

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Root:
    number: int
    key: Ed25519PrivateKey
    tls: certificates.TlsCa

    @property
    def public(self) -> bytes:
        return self.key.public_key().public_bytes_raw()


@dataclass(frozen=True, slots=True)
class Issued:
    entry: Entry
    record: bytes  # nothing for a broker
    cert: bytes  # DER


class Authority:
    """Opened where the root's private keys are. `durable=False` spares the fsyncs of a simulated fleet."""

    def __init__(self, folder: Path, durable: bool = True, clock: Callable[[], float] = time.time) -> None:
        self.folder, self.durable, self._clock, self._claim = folder, durable, clock, RegisterLock(folder)
        self.register, self._waiting = load_register(folder), False
        if self.register.listed is None:  # what its lists have said, under this version, cannot be known
            self.register = self.register.with_lists(self.now())
        self.roots = [_load_root(folder, number) for number in self.register.roots]
        self._finish_what_was_killed()

    def _finish_what_was_killed(self) -> None:
        """A change of roots writes the register first. What else belongs to it is made from that."""
        path = self.folder / ROOTS_FILE
        if not path.exists():
            return
        held = first_roots(read_armoured(ROOTS, path))
        if held.version < self.register.roots_version:
            known = {*held.keys, *(root.public for root in self.roots)}
            kept = [_load_root(self.folder, number) for number in _kept_roots(self.folder)]
            self.save([root for root in kept if root.public in known])
        self.destroy_ended()

    def destroy_ended(self) -> None:
        """The private keys of roots before those that hold; only when the statement of that is on the disk."""
        for number in _kept_roots(self.folder):
            if number < self.register.roots[0]:
                for name in PRIVATE_KEYS:
                    (self.folder / "roots" / str(number) / name).unlink(missing_ok=True)

    @property
    def federation(self) -> str:
        return self.register.federation

    @property
    def fingerprint(self) -> str:
        """Of the newest root: what a device's owner compares once."""
        return fingerprint(self.roots[-1].public)

    @property
    def keys(self) -> list[Ed25519PrivateKey]:
        return [root.key for root in self.roots]

    def now(self) -> int:
        return int(self._clock())

    def issue(self, request: Request, days: float, asked: str, root: Root) -> Issued:
        """A record and a TLS certificate of one serial number."""
        now = self.now()
        since, until = now - SKEW, int(now + days * DAY)
        if days <= 0:
            raise SettingsError(f"--days is {days:g}, it must be above 0")
        limit = int(root.tls.cert.not_valid_after_utc.timestamp())
        if until > limit:
            raise SettingsError(f"{days:g} days outlive root {root.number}; rotate it first, or take fewer")
        serial = max(self.register.last_serial + 1, 1000 * now)  # grows, whatever backup was restored
        entry = Entry(serial, request.name, request.part, root.number, since, until, asked)
        csr = certificates.read_csr(request.csr, request.name)
        validity = (_utc(since), _utc(until))
        cert = certificates.issue_for_request(root.tls, csr, request.name, request.hosts, serial, validity)
        record = b"" if request.part == "broker" else self._record(request, entry, root)
        self.register = self.register.with_entry(entry)
        return Issued(entry, record, cert.public_bytes(DER))

    def issue_check(self, name: str, key: certificates.PublicKey, seconds: int) -> tuple[int, bytes]:
        """A client's certificate for ourselves, in anybody's name, for some minutes: serial number and PEM."""
        now, root = self.now(), self.roots[0]
        serial = max(self.register.last_serial + 1, 1000 * now)
        entry = Entry(serial, name, CHECK, root.number, now - SKEW, now + seconds, "")
        validity = (_utc(entry.not_before), _utc(entry.not_after))
        cert = certificates.issue_certificate(root.tls, key, name, (), serial, validity)
        self.register = self.register.with_entry(entry).without_old_checks(now)
        return serial, cert.public_bytes(PEM)

    def _record(self, request: Request, entry: Entry, root: Root) -> bytes:
        assert request.part != "broker"
        made = Record(
            self.federation, request.name, request.part, request.sign, request.receive,
            entry.serial, entry.not_before, entry.not_after,
        )  # fmt: skip
        return issue_record(made, root.key)

    def load_root(self, number: int) -> Root:
        return _load_root(self.folder, number)

    def revoke(self, serials: set[int], reason: str) -> None:
        self.register = self.register.with_revoked(serials, self.now(), reason)
        self.save()

    def save(self, signed_by: Iterable[Root] = ()) -> None:
        """The register first: what it does not know has never been issued."""
        if self._waiting:
            return
        with self._claim.held():
            save_register(self.folder, self.register, self.durable)
            self.write(ROOTS_FILE, armoured(ROOTS, self.roots_statement(signed_by)))
            self.write(REVOKED_FILE, armoured(REVOCATIONS, self.revoked_statement()))

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Save once for many: the register of a large fleet would be written for each of its devices."""
        with self._claim.held():
            self._waiting = True
            try:
                yield
            finally:
                self._waiting = False
                self.save()

    def keep(self, issued: Issued, request: bytes) -> None:
        """What was issued, and for which request: to be handed out again."""
        name = issued.entry.name
        with self._claim.held():
            self.write(f"requests/{name}.request", armoured(REQUEST, request))
            self.write(
                f"certs/{name}.crt", x509.load_der_x509_certificate(issued.cert).public_bytes(PEM).decode()
            )
            if issued.record:
                self.write(f"records/{name}.record", armoured(RECORD, issued.record))
            self.save()

    def request(self, name: str) -> bytes:
        return read_armoured(REQUEST, self.folder / "requests" / f"{name}.request")

    def issued(self, entry: Entry) -> Issued:
        path = self.folder / "records" / f"{entry.name}.record"
        cert = x509.load_pem_x509_certificate((self.folder / "certs" / f"{entry.name}.crt").read_bytes())
        return Issued(entry, read_armoured(RECORD, path) if path.exists() else b"", cert.public_bytes(DER))

    def write(self, name: str, text: str) -> Path:
        write_file(self.folder / name, text.encode(), durable=self.durable)
        return self.folder / name

    def roots_statement(self, signed_by: Iterable[Root] = ()) -> bytes:
        path = self.folder / ROOTS_FILE
        if not signed_by and path.exists():
            return read_armoured(ROOTS, path)
        told = Roots(
            self.federation,
            self.register.roots_version,
            tuple(root.public for root in self.roots),
            tuple(root.tls.cert.public_bytes(DER) for root in self.roots),
        )
        return issue_roots(told, [root.key for root in signed_by or self.roots])

    def revoked_statement(self) -> bytes:
        listed = frozenset(self.register.listed or ())
        return issue_revocations(Revocations(self.federation, self.register.version, listed), self.keys)

    def crl(self) -> bytes:
        """A list of each authority that holds: Mosquitto refuses everybody whose authority has none."""
        # A version may be ahead of the clock, after many in one second or a clock that was wrong for a while.
        made, serials = _utc(min(self.register.version, self.now() + SKEW // 2)), self.register.listed or ()
        return b"".join(certificates.revocation_list(root.tls, serials, made) for root in self.roots)

    def authorities(self) -> bytes:
        return b"".join(root.tls.cert.public_bytes(PEM) for root in self.roots)


def make_authority(
    folder: Path, federation: str, years: float, durable: bool = True, clock: Callable[[], float] = time.time
) -> Authority:
    if (folder / REGISTER).exists() or (folder / "roots" / "1").exists():
        raise SettingsError(f"{folder} holds a root already; take another folder, or `enrol rotate` this one")
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    make_root(folder, valid_name(federation), 1, years, clock(), durable)
    save_register(folder, Register(federation).with_lists(int(clock())), durable)
    made = Authority(folder, durable, clock)
    made.save()
    return made


def make_root(folder: Path, federation: str, number: int, years: float, now: float, durable: bool) -> None:
    if not 0 < years <= 50:
        raise SettingsError(f"--years is {years:g}, it must be above 0 and at most 50")
    place = folder / "roots" / str(number)
    fresh = place.with_name(f"{number}.new")
    if fresh.exists():  # of a command that was killed
        shutil.rmtree(fresh)
    fresh.mkdir(parents=True, mode=0o700)
    until = _utc(int(now + years * 365.25 * DAY))
    tls = certificates.new_tls_ca(federation, number, _utc(int(now)), until)
    write_private(fresh / "root.key", Ed25519PrivateKey.generate(), durable)
    write_private(fresh / "tls-ca.key", tls.key, durable)
    write_file(fresh / "tls-ca.crt", tls.cert.public_bytes(PEM), durable=durable)
    _move_aside(place)
    fresh.rename(place)
    if durable:
        sync(place.parent)


def _move_aside(place: Path) -> None:
    """A root that the register does not know: a killed command's, or one that came after an older register."""
    if place.exists():
        names = (place.with_name(f"{place.name}.unused-{i}") for i in itertools.count(1))
        aside = next(name for name in names if not name.exists())
        place.rename(aside)
        log.warning("%s is not in the register; it is kept as %s", place, aside.name)


def _kept_roots(folder: Path) -> list[int]:
    """Numbers of the roots whose private keys are here, or one of them."""
    places = [p for p in (folder / "roots").iterdir() if p.name.isdigit()]
    return sorted(int(p.name) for p in places if any((p / name).exists() for name in PRIVATE_KEYS))


def _load_root(folder: Path, number: int) -> Root:
    place = folder / "roots" / str(number)
    key = read_identity(place / "root.key")
    ca = read_tls(place / "tls-ca.key")
    try:
        cert = x509.load_pem_x509_certificate((place / "tls-ca.crt").read_bytes())
    except (OSError, ValueError) as error:
        raise SettingsError(f"{place / 'tls-ca.crt'} cannot be used: {error}") from None
    return Root(number, key, certificates.TlsCa(cert, ca))


def describe_roots(authority: Authority) -> str:
    return ", ".join(f"{root.number} ({signer(root.public).hex()})" for root in authority.roots)


def _utc(seconds: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(seconds, dt.timezone.utc)


def with_roots(register: Register, roots: tuple[int, ...], now: int) -> Register:
    """Another set of roots, which every party has to hear of, and so other lists."""
    version = max(
        register.roots_version + 1, now
    )  # as serial numbers do: it grows, whatever backup was restored
    return replace(register, roots=roots, roots_version=version).with_lists(now)
