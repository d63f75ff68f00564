"""Read the files that `protofleet enrol install` has stored on the machine of a device or coordinator.

Statements are trusted only if their signatures are valid. <folder>/current is a link to the newest complete
set of files, so a renewal replaces the whole set at once:

    identity.key receive.key tls.key     private keys, made on this machine and never sent
    identity.record                      this party's own record
    roots revoked                        the valid roots, and the list of revoked records
    coordinator.record                   the coordinator that a device communicates with
    ca.crt tls.crt                       certificates for the TLS connection to the broker
    standby.crt                          the coordinator's second certificate, for the same TLS key
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from protofleet.protocol.security.keyfiles import KeyFileError, read_identity, read_receive
from protofleet.protocol.security.records import RECORD, REVOCATIONS, Record, Revocations, SignedEntry
from protofleet.protocol.security.statements import StatementError, StatementFault, read_armoured
from protofleet.protocol.security.trust import ROOTS, Trust, first_roots
from protofleet.protocol.wire.names import COORDINATOR, Role, valid_name

CURRENT: Final = "current"
IDENTITY_KEY: Final = "identity.key"
RECEIVE_KEY: Final = "receive.key"
TLS_KEY: Final = "tls.key"
TLS_CERT: Final = "tls.crt"
TLS_CA: Final = "ca.crt"
STANDBY_CERT: Final = "standby.crt"
OWN_RECORD: Final = "identity.record"
OWN_OPERATOR: Final = "identity.operator"  # in place of OWN_RECORD, for an operator
ROOTS_FILE: Final = "roots"
REVOKED_FILE: Final = "revoked"

LOOK_SECONDS: Final = 1.0  # seconds between two checks of the files of one name

P = TypeVar("P", bound=SignedEntry)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Enrolled:
    """An enrolled party: its record and keys, and the roots that it trusts."""

    record: Record
    trust: Trust
    identity: Ed25519PrivateKey
    receive: X25519PrivateKey


def load_trust(folder: Path) -> Trust:
    """Load the roots and the revocations of a folder.

    The roots were checked when they were installed: a person compared their fingerprint, or earlier roots had
    signed them.
    """
    roots = first_roots(read_armoured(ROOTS, folder / ROOTS_FILE))
    trust = Trust(roots, Revocations(roots.federation))
    if (folder / REVOKED_FILE).exists():
        trust = trust.with_revocations(read_armoured(REVOCATIONS, folder / REVOKED_FILE))
    return trust


def load_enrolled(folder: Path, now: float) -> Enrolled:
    """Load a party from `folder`, the folder to which the link `current` of this party points.

    Raise KeyFileError or StatementError if a file is missing or not valid.
    """
    trust = load_trust(folder)
    record = trust.admit(read_armoured(RECORD, folder / OWN_RECORD), now)
    return Enrolled(record, trust, *own_keys(folder, OWN_RECORD, (record.sign, record.receive)))


def own_keys(
    folder: Path, statement: str, public: tuple[bytes, bytes]
) -> tuple[Ed25519PrivateKey, X25519PrivateKey]:
    """Return the private keys in `folder`; raise StatementError if the statement is for other public keys."""
    identity = read_identity(folder / IDENTITY_KEY)
    receive = read_receive(folder / RECEIVE_KEY)
    if (identity.public_key().public_bytes_raw(), receive.public_key().public_bytes_raw()) != public:
        message = f"{folder / statement} is made out to other keys than those beside it; install it again"
        raise StatementError(StatementFault.WRONG_KEYS, message)
    return identity, receive


def updated_trust(trust: Trust, folder: Path) -> Trust:
    """Return this trust with the roots and revocations that are installed in a folder.

    Raise StatementError if the installed statements are older than the statements of this trust.
    """
    trust = trust.with_roots(read_armoured(ROOTS, folder / ROOTS_FILE))
    if (folder / REVOKED_FILE).exists():
        trust = trust.with_revocations(read_armoured(REVOCATIONS, folder / REVOKED_FILE))
    return trust


def _file_version(path: Path) -> tuple[int, int] | None:
    """Return a value that changes when the file or folder is replaced; return None if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino


def _words(error: StatementError | KeyFileError) -> str:
    return error.detail if isinstance(error, StatementError) else str(error)


class KnownParties(Mapping[str, P], Generic[P]):
    """A mapping of the files of one kind in a folder, such as `<name>.record`.

    The mapping contains only valid statements, which are called records here. A record is looked up about twelve
    times for each frame, so the files of one name are read at most once a second. A record that is added during a
    run is found at the next look-up. The replacement or revocation of a record is noticed within one second. If a
    frame is not valid with the known record, `changed` reads the record again, and the frame is checked once more.

    `follow` is the folder of the party that owns this mapping. Roots and revocations that are installed in
    this folder later are used from then on.
    """

    suffix = RECORD

    def __init__(
        self,
        folder: Path,
        trust: Trust,
        clock: Callable[[], float] = time.time,
        follow: Path | None = None,
    ) -> None:
        self.trust = trust
        self._follow, self._installed = follow, _file_version(follow / CURRENT) if follow else None
        self._folder, self._clock = folder, clock
        self._read_before: dict[str, tuple[tuple[int, int], P]] = {}
        # Name -> time when the name's record was admitted, and the record. The record is used for one second
        # without a new check.
        self._admitted: dict[str, tuple[float, P]] = {}
        self._logged: dict[str, str] = {}

    def read(self, path: Path, name: str, now: float) -> P:
        """Return the statement in a file; raise StatementError if it is not valid, or is for another name."""
        raise NotImplementedError

    def __getitem__(self, name: str) -> P:
        at, known = self._admitted.get(name, (0.0, None))
        # The difference is below 0 if the clock was set back.
        if known is not None and 0.0 <= self._clock() - at < LOOK_SECONDS:
            return known
        try:
            return self.admitted(name)
        except (StatementError, KeyFileError) as error:
            message = _words(error)
            # Repeated look-ups of a name must not fill the log, and names without a file must not fill
            # `_logged`.
            if self._logged.get(name) != message and (name in self._logged or self._has(name)):
                self._logged[name] = message
                log.warning("%s is not known here: %s", name, message)
            raise KeyError(name) from None

    def changed(self, name: str) -> bool:
        _, believed = self._admitted.pop(name, (0.0, None))
        return believed is not None and self.get(name) != believed

    def problem(self, name: str) -> str:
        """Return the reason why this name has no valid record, or "" if it has a valid record.

        The caller reports the reason, so the reason is not logged again later.
        """
        try:
            self.admitted(name)
        except (StatementError, KeyFileError) as error:
            self._logged[name] = _words(error)
            return self._logged[name]
        return ""

    def is_revoked(self, serial: int) -> bool:
        """Return whether the record with this serial is revoked, according to the installed revocations."""
        self._reload_trust()
        return serial in self.trust.revoked.serials

    def _has(self, name: str) -> bool:
        with contextlib.suppress(ValueError, OSError):
            return self._file(name).is_file()
        return False

    def _file(self, name: str) -> Path:
        return self._folder / f"{valid_name(name)}.{self.suffix}"

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._names() if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def admitted(self, name: str) -> P:
        """Return the present record of this name; do not use the one-second cache.

        Raise StatementError with the reason if there is no valid record.
        """
        self._admitted.pop(name, None)
        now, record = self._clock(), self._looked_up(name)
        self._admitted[name] = (now, record)
        return record

    def _looked_up(self, name: str) -> P:
        self._reload_trust()
        try:
            path = self._file(name)
            status = path.stat()
        except (ValueError, OSError):
            self._read_before.pop(name, None)
            message = f"there is no record of {name!r} in {self._folder}"
            raise StatementError(StatementFault.WRONG_NAME, message) from None
        version = (status.st_mtime_ns, status.st_ino)
        seen = self._read_before.get(name)
        if seen is not None and seen[0] == version:
            self.trust.check(seen[1], self._clock())
            return seen[1]
        record = self.read(path, name, self._clock())
        self._read_before[name] = (version, record)
        return record

    def _reload_trust(self) -> None:
        if self._follow is None or (version := _file_version(self._follow / CURRENT)) in (
            None,
            self._installed,
        ):
            return
        self._installed = version
        try:
            self.trust = updated_trust(self.trust, self._follow / CURRENT)
        except (StatementError, KeyFileError) as error:  # the earlier trust is still used
            log.warning(
                "the roots and revocations in %s are not used, and the earlier ones stay valid: %s",
                self._follow,
                error,
            )

    def _names(self) -> list[str]:
        return sorted(path.stem for path in self._folder.glob(f"*.{self.suffix}"))


class KnownRecords(KnownParties[Record]):
    """A mapping of the records of all devices, or of the coordinator's record."""

    def __init__(
        self, folder: Path, trust: Trust, role: Role = "device", clock: Callable[[], float] = time.time,
        follow: Path | None = None,
    ) -> None:  # fmt: skip
        super().__init__(folder, trust, clock, follow)
        self._role = role

    def read(self, path: Path, name: str, now: float) -> Record:
        return self.trust.admit(read_armoured(RECORD, path), now, name=name, role=self._role)

    def signed(self, name: str) -> tuple[Record, bytes]:
        """Return the present record of this name, and the bytes that the root has signed; nothing is cached.

        Raise StatementError or KeyFileError with the reason if there is no valid record.
        """
        data = read_armoured(RECORD, self._file(name))
        return self.trust.admit(data, self._clock(), name=name, role=self._role), data

    def _names(self) -> list[str]:
        return [name for name in super()._names() if (name == COORDINATOR) == (self._role == "coordinator")]
