"""The operator's side of a deployment: the desired state of each device, and what the root signs for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protofleet.deploy.enrol import disconnect
from protofleet.deploy.enrol.authority import ROOTS_FILE, Authority
from protofleet.deploy.enrol.lifecycle import (
    ReviewedRequest,
    approve,
    reissue_approvals,
    renew,
    review_request,
    same_keys,
)
from protofleet.deploy.enrol.request import REQUEST
from protofleet.deploy.errors import RunError
from protofleet.deploy.fleet.device.facts import Facts
from protofleet.deploy.fleet.device.scripts import Place
from protofleet.deploy.fleet.device.unit import mark_of, sha256_of, unit_of
from protofleet.deploy.fleet.manifest import MANIFEST, files_of, issue_manifest
from protofleet.deploy.fleet.plan import Desired, InstalledSettings
from protofleet.deploy.fleet.settings import Fleet, device_settings
from protofleet.deploy.fleet.software import INSTALL_FILE, Release, file_digest
from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.host.overrides import LONGEST_SECONDS, Overrides
from protofleet.protocol.security.signed_settings import (
    SETTINGS,
    TUNING,
    SignedSettings,
    SignedTuning,
    issue_settings,
    issue_tuning,
    read_settings,
)
from protofleet.protocol.security.statements import StatementError, armoured, from_armour
from protofleet.protocol.settings.reader import SettingsError, decode, encode, override, write_toml
from protofleet.protocol.wire.names import COORDINATOR

RENEW_BEFORE_SECONDS: Final = 30 * 86_400  # that a certificate still has
DIGEST_DIGITS: Final = 16  # of the digest of settings

ConfirmFingerprint = Callable[[str, str], bool]  # given a device's name and the fingerprint of its request


@dataclass(frozen=True, slots=True)
class Target:
    """The desired state of one device, and the texts of its files."""

    desired: Desired
    settings: DeviceSettings
    text: str
    unit: str


class ControlPlane:
    """Its lock lets one thread at a time sign: the register of what was issued is one file."""

    def __init__(
        self, fleet: Fleet, release: Release, confirm: ConfirmFingerprint, replace: bool = False
    ) -> None:
        """`replace`: an enrolled name may come with new keys, as a board that was installed again does."""
        self.fleet, self.release, self._confirm, self._replace = fleet, release, confirm, replace
        self._authority, self._lock = Authority(Path(fleet.root)), threading.RLock()

    @property
    def federation(self) -> str:
        return self._authority.federation

    @property
    def root_fingerprint(self) -> str:
        return self._authority.fingerprint

    def place(self, name: str) -> Place:
        return Place(python=self.fleet.software.python)

    def settings(self, name: str) -> DeviceSettings:
        return device_settings(self.fleet, self.federation, name)

    def target(self, name: str, facts: Facts) -> Target:
        settings = self.settings(name)
        text = write_toml(encode(settings))
        unit = unit_of(facts, self.fleet.hosts[name], settings, self.fleet.software)
        record = Path(self.fleet.root) / "records" / f"{COORDINATOR}.record"
        desired = Desired(
            name, self.release.name, self.release.description, sha256_of(text)[:DIGEST_DIGITS], sha256_of(unit),
            mark_of(unit), self._valid_certificates(name), _sha256(Path(self.fleet.root) / ROOTS_FILE),
            _sha256(record), self.fleet.care,
        )  # fmt: skip
        return Target(desired, settings, text, unit)

    def installed_settings(self, name: str, data: bytes) -> InstalledSettings:
        """Empty unless our root has signed them, for this device."""
        found = self._read(data)
        if found is None or found.name != name:
            return InstalledSettings()
        return InstalledSettings(sha256_of(found.text)[:DIGEST_DIGITS], found.version)

    def signed_settings(self, name: str, text: str, above: int) -> str:
        """Settings with a version above all earlier ones."""
        settings = SignedSettings(self.federation, name, max(int(time.time()), above + 1), text)
        return armoured(SETTINGS, issue_settings(settings, self._authority.keys))

    def release_folder(self) -> Path:
        """With the manifest that the device verifies."""
        folder = self.release.folder
        with self._lock:
            if not (folder / MANIFEST).exists():
                (folder / INSTALL_FILE).write_text("\n".join([*self.release.install_arguments, ""]))
                text = self.manifest(f"release {self.release.name}", files_of(folder))
                (folder / MANIFEST).write_text(text)
        return folder

    def manifest(self, subject: str, files: Mapping[str, str]) -> str:
        return issue_manifest(self.federation, subject, files, self._authority.keys)

    def roots(self) -> str:
        return (Path(self.fleet.root) / ROOTS_FILE).read_text()

    def signed_tuning(self, name: str, changes: Sequence[str], hours: float) -> str:
        """Overrides of settings for some hours; a mistake in them is found here, not on the device."""
        text = write_toml(encode(decode(Overrides, override({}, changes), "tuning")))
        now = int(time.time())
        if not 0 < hours * 3600 <= LONGEST_SECONDS:
            raise SettingsError(
                f"--hours is {hours:g}, it must be above 0 and at most {LONGEST_SECONDS // 3600}"
            )
        tuning = SignedTuning(self.federation, name, now, now + int(hours * 3600), text)
        return armoured(TUNING, issue_tuning(tuning, self._authority.keys))

    def verified_settings_text(self, data: bytes) -> str:
        found = self._read(data)
        if found is None:
            raise RunError("the earlier settings on the device are not signed by our root")
        return found.text

    def approval(self, name: str, request: str) -> str:
        """The answer to a device's request; a person compares the fingerprint of keys that are new to us."""
        with self._lock:
            asked = self._review(name, request)
            if self._approved_before(name, asked):
                renew(self._authority, name)
            elif not self._confirm(name, asked.fingerprint):
                raise RunError(
                    f"{name} was not approved: nobody has confirmed the fingerprint {asked.fingerprint}"
                )
            else:
                approve(self._authority, asked, replace=self._replace)
            return (Path(self.fleet.root) / "approvals" / f"{name}.approval").read_text()

    def _review(self, name: str, request: str) -> ReviewedRequest:
        """A bad request fails this device's deployment alone; it may ask to be this device and nothing else."""
        try:
            data = from_armour(REQUEST, request.encode(), f"the request of {name}")
            return review_request(self._authority, data, name, "device")
        except StatementError as error:
            raise RunError(f"{name} was not approved: {error}") from None

    def readmit(self, name: str) -> str:
        """Brokers deny a revoked name all topics, whatever its new keys. What was done about it, or ""."""
        with self._lock:
            if not any(e.name == name and e.revoked_at for e in self._authority.register.entries):
                return ""
            reissue_approvals(self._authority, "broker")
            if not self.fleet.broker:
                where = Path(self.fleet.root) / "approvals"
                return (
                    f"it was revoked before: install the brokers' approvals from {where} and let them reload"
                )
            disconnect.install_broker(self._authority, Path(self.fleet.broker))
            disconnect.reload(Path(self.fleet.broker))
            return "it was revoked before; the broker accepts the name again"

    def _approved_before(self, name: str, asked: ReviewedRequest) -> bool:
        """Whether these keys were approved before. Revoked keys are never approved again."""
        latest = self._authority.register.latest(name)
        if latest is None:
            return False
        same = same_keys(self._authority, asked)
        if same and latest.revoked_at:
            problem = f"{name} was revoked with the keys that it still has"
            raise RunError(f"{problem}; `protofleet deploy revoke {name}` destroys them, then deploy again")
        return same

    def _valid_certificates(self, name: str) -> frozenset[str]:
        """SHA-256 of this name's certificate, unless it is to be renewed."""
        latest, now = self._authority.register.latest(name), self._authority.now()
        if latest is None or not latest.is_valid(now + RENEW_BEFORE_SECONDS) or latest.revoked_at:
            return frozenset()
        return frozenset({_sha256(Path(self.fleet.root) / "certs" / f"{name}.crt")})

    def _read(self, data: bytes) -> SignedSettings | None:
        try:
            return read_settings(data, [root.public for root in self._authority.roots])
        except StatementError:
            return None


def _sha256(path: Path) -> str:
    return file_digest(path) if path.exists() else ""
