"""The operator's side of a deployment: what each device shall be, and what the root has to sign for it."""

from __future__ import annotations

import hashlib
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
from protofleet.deploy.fleet.device.unit import mark_of, sha256_of, unit_of
from protofleet.deploy.fleet.manifest import MANIFEST, files_of, issue_manifest
from protofleet.deploy.fleet.plan import Desired, InstalledSettings
from protofleet.deploy.fleet.settings import Fleet, settings_of
from protofleet.deploy.fleet.software import INSTALL_FILE, Release
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

DUE_SECONDS: Final = 30 * 86_400  # before its end a certificate is renewed
SHORT: Final = 16  # digits of a digest of settings

ConfirmFingerprint = Callable[[str, str], bool]  # shown a device's name and the fingerprint of its request


@dataclass(frozen=True, slots=True)
class Target:
    """One device, and the texts that it shall hold."""

    desired: Desired
    settings: DeviceSettings
    text: str
    unit: str


class ControlPlane:
    """One at a time: the register of what was issued is one file."""

    def __init__(
        self, fleet: Fleet, release: Release, vouch: ConfirmFingerprint, replace: bool = False
    ) -> None:
        """`replace`: a name that is enrolled may come with other keys, as of a board that was set up anew."""
        self.fleet, self.release, self._vouch, self._replace = fleet, release, vouch, replace
        self._authority, self._lock = Authority(Path(fleet.root)), threading.RLock()

    @property
    def federation(self) -> str:
        return self._authority.federation

    @property
    def root_fingerprint(self) -> str:
        return self._authority.fingerprint

    def settings(self, name: str) -> DeviceSettings:
        return settings_of(self.fleet, self.federation, name)

    def target(self, name: str, facts: Facts) -> Target:
        settings = self.settings(name)
        text, unit = (
            write_toml(encode(settings)),
            unit_of(facts, self.fleet.hosts[name], settings, self.fleet.software),
        )
        records = Path(self.fleet.root) / "records" / f"{COORDINATOR}.record"
        desired = Desired(
            name, self.release.name, self.release.description, sha256_of(text)[:SHORT], sha256_of(unit),
            mark_of(unit), self._certificates(name), _sum(Path(self.fleet.root) / ROOTS_FILE), _sum(records),
            self.fleet.care,
        )  # fmt: skip
        return Target(desired, settings, text, unit)

    def present(self, name: str, data: bytes) -> InstalledSettings:
        """What is installed counts for nothing unless our root has signed it, for this device."""
        told = self._read(data)
        if told is None or told.name != name:
            return InstalledSettings()
        return InstalledSettings(sha256_of(told.text)[:SHORT], told.version)

    def signed(self, name: str, text: str, above: int) -> str:
        """Settings of a version that no earlier ones have had."""
        told = SignedSettings(self.federation, name, max(int(time.time()), above + 1), text)
        return armoured(SETTINGS, issue_settings(told, self._authority.keys))

    def shipped(self) -> Path:
        """The release's folder, with the manifest that the device will ask for."""
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

    def tuned(self, name: str, changes: Sequence[str], hours: float) -> str:
        """Some settings for some hours; a slip in them is found here, not there."""
        text = write_toml(encode(decode(Overrides, override({}, changes), "tuning")))
        now = int(time.time())
        if not 0 < hours * 3600 <= LONGEST_SECONDS:
            raise SettingsError(
                f"--hours is {hours:g}, it must be above 0 and at most {LONGEST_SECONDS // 3600}"
            )
        told = SignedTuning(self.federation, name, now, now + int(hours * 3600), text)
        return armoured(TUNING, issue_tuning(told, self._authority.keys))

    def text_of(self, data: bytes) -> str:
        told = self._read(data)
        if told is None:
            raise RunError("the settings that were kept on the device are not signed by our root")
        return told.text

    def approval(self, name: str, request: str) -> str:
        """The answer to a device's request; a person compares the fingerprint of keys that are new to us."""
        with self._lock:
            asked = self._asked(name, request)
            if self._known(name, asked):
                renew(self._authority, name)
            elif not self._vouch(name, asked.fingerprint):
                raise RunError(f"{name} was not approved: nobody has vouched for {asked.fingerprint}")
            else:
                approve(self._authority, asked, replace=self._replace)
            return (Path(self.fleet.root) / "approvals" / f"{name}.approval").read_text()

    def _asked(self, name: str, request: str) -> ReviewedRequest:
        """A device may ask for nothing but to be this device; what it sends harms no other device's deployment."""
        try:
            data = from_armour(REQUEST, request.encode(), f"the request of {name}")
            return review_request(self._authority, data, name, "device")
        except StatementError as error:
            raise RunError(f"{name} was not approved: {error}") from None

    def let_back_in(self, name: str) -> str:
        """Brokers deny a revoked name all topics, whatever its new keys; what was done about it."""
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
            return "it was revoked before; the broker lets the name in again"

    def _known(self, name: str, asked: ReviewedRequest) -> bool:
        """These very keys were approved before. Revoked ones are good for nothing ever again."""
        latest = self._authority.register.latest(name)
        if latest is None:
            return False
        same = same_keys(self._authority, asked)
        if same and latest.revoked_at:
            words = f"{name} was revoked with the keys that it still has"
            raise RunError(f"{words}; `protofleet deploy revoke {name}` destroys them, then deploy again")
        return same

    def _certificates(self, name: str) -> frozenset[str]:
        """Hash of the certificate that this name holds, unless it ends soon."""
        latest, now = self._authority.register.latest(name), self._authority.now()
        if latest is None or not latest.holds(now + DUE_SECONDS) or latest.revoked_at:
            return frozenset()
        return frozenset({_sum(Path(self.fleet.root) / "certs" / f"{name}.crt")})

    def _read(self, data: bytes) -> SignedSettings | None:
        try:
            return read_settings(data, [root.public for root in self._authority.roots])
        except StatementError:
            return None


def _sum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""
