"""Compute the desired state of each host, and sign what the root has to sign for it.

This is the operator's side of a deployment.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cryptography import x509

from protofleet.coordinator.config import CoordinatorSettings
from protofleet.deploy.fleet.device import shipped_template
from protofleet.deploy.fleet.device.facts import Facts
from protofleet.deploy.fleet.device.roles import BROKER, DEVICE, ROLES, Role
from protofleet.deploy.fleet.device.scripts import HostRole
from protofleet.deploy.fleet.device.shipped_plugins import at_the_host
from protofleet.deploy.fleet.device.unit import mark_of, service_unit, sha256_of, unit_of
from protofleet.deploy.fleet.manifest import MANIFEST, files_of, issue_manifest
from protofleet.deploy.fleet.plan import Desired, InstalledSettings
from protofleet.deploy.fleet.settings import (
    Fleet,
    broker_address,
    broker_conf,
    broker_port,
    coordinator_settings,
    device_settings,
    naming_file,
    plugin_files,
    template_files,
)
from protofleet.deploy.fleet.software import INSTALL_FILE, Release, Releases, file_digest
from protofleet.deploy.fleet.targets import TARGETS_FILE, targets_text
from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.host.overrides import LONGEST_SECONDS, Overrides
from protofleet.federation.brokers.mosquitto import ACL_FILE, CRL_FILE
from protofleet.federation.enrol import disconnect, older_root
from protofleet.federation.enrol.approval import unverified_approval
from protofleet.federation.enrol.authority import REVOKED_FILE, ROOTS_FILE, Authority
from protofleet.federation.enrol.certificates import host_names
from protofleet.federation.enrol.key_folder import (
    expect_fingerprint,
    install,
    make_request,
    read_approval_file,
)
from protofleet.federation.enrol.lifecycle import (
    DAYS,
    ReviewedRequest,
    approve,
    enrolled_devices,
    reissue_approvals,
    renew,
    review_request,
    same_keys,
)
from protofleet.federation.enrol.local_federation import enrol
from protofleet.federation.enrol.older_root import read_held
from protofleet.federation.enrol.register import NoRootError, lost
from protofleet.federation.enrol.request import MAX_HOSTS, REQUEST
from protofleet.protocol.security.enrolment import CURRENT, TLS_CA, TLS_CERT, TLS_KEY
from protofleet.protocol.security.enrolment import REVOKED_FILE as KNOWN_REVOKED
from protofleet.protocol.security.enrolment import ROOTS_FILE as KNOWN_ROOTS
from protofleet.protocol.security.records import REVOCATIONS, day
from protofleet.protocol.security.signed_settings import (
    SETTINGS,
    TUNING,
    SignedSettings,
    SignedTuning,
    issue_settings,
    issue_tuning,
    read_settings,
)
from protofleet.protocol.security.statements import StatementError, armoured, from_armour, read_armoured
from protofleet.protocol.settings.reader import SettingsError, decode, encode, override, write_toml
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.protocol.wire.printable import printable
from protofleet.runtime.command.errors import RunError

# A certificate is renewed if it is valid for fewer seconds than this.
RENEW_BEFORE_SECONDS: Final = 30 * 86_400
BROKER_FILES: Final = (TLS_CA, TLS_CERT, TLS_KEY, CRL_FILE, ACL_FILE, KNOWN_ROOTS)
DIGEST_DIGITS: Final = 16  # the number of digits that are kept of the digest of settings

# It is called with a device's name and the fingerprint of its request.
ConfirmFingerprint = Callable[[str, str], bool]


@dataclass(frozen=True, slots=True)
class Target:
    """The desired state of one host, and the texts of its files."""

    desired: Desired
    text: str
    unit: str
    files: Mapping[str, str] = field(default_factory=dict)  # the files besides the settings and the unit


class ControlPlane:
    """The operator's side of a deployment.

    Its lock lets one thread at a time sign, because the register of issued certificates is one file.
    """

    def __init__(
        self, fleet: Fleet, releases: Releases, confirm: ConfirmFingerprint, replace: bool = False
    ) -> None:
        """Open the fleet's root.

        If `replace` is true, an enrolled name may come with new keys, as a board does after it was installed
        again.
        """
        self.fleet, self._releases, self._confirm, self._replace = fleet, releases, confirm, replace
        self.authority, self._lock = open_root(fleet), threading.RLock()

    @property
    def federation(self) -> str:
        return self.authority.federation

    @property
    def root_fingerprint(self) -> str:
        return self.authority.fingerprint

    def role(self, name: str) -> Role:
        return ROLES[self.fleet.hosts[name].role]

    def place(self, name: str) -> HostRole:
        role, endpoint, models = self.role(name), "", ""
        if role.name == COORDINATOR:
            endpoint = self.coordinator_settings().endpoint().url("/health")
        elif role.name == BROKER:
            endpoint = str(broker_port(self.fleet))
        elif (settings := self.settings(name)).models is not None and settings.models.serves:
            models = str(settings.models.folder_in(Path(settings.folder)))
        return HostRole(role, self.fleet.software_of(name).python, endpoint, models)

    def release(self, name: str) -> Release:
        return self._releases.of(name)

    def settings(self, name: str) -> DeviceSettings:
        """Return the settings of a device."""
        return device_settings(self.fleet, self.federation, name)

    def coordinator_settings(self) -> CoordinatorSettings:
        return coordinator_settings(self.fleet, self.federation)

    def text(self, name: str) -> str:
        """Return the settings of a host of any role; raise SettingsError if the fleet's file is wrong."""
        match self.role(name).name:
            case "broker":
                return broker_conf(self.fleet, enrolled_devices(self.authority))
            case "coordinator":
                settings: object = self.coordinator_settings()
            case _:
                settings = self.settings(name)
        return write_toml(self._there(name, encode(settings)))

    def _there(self, name: str, table: dict[str, Any]) -> dict[str, Any]:
        """Return the settings with the paths that shipped files have on the host."""
        plugins, template = plugin_files(self.fleet, name), template_files(self.fleet, name)
        if not (plugins or template):
            return table
        shipped = f"{self.role(name).top}/wheels/{self.release(name).name}"
        return shipped_template.at_the_host(at_the_host(table, plugins, shipped), shipped)

    def target(self, name: str, facts: Facts) -> Target:
        role, text, root = self.role(name), self.text(name), Path(self.fleet.root)
        host = self.fleet.hosts[name]
        with naming_file(self.fleet):
            if role == DEVICE:
                there = decode(
                    DeviceSettings, self._there(name, encode(self.settings(name))), f"device ({name})"
                )
                unit = unit_of(facts, host, there, self.fleet.software_of(name))
            else:
                unit = service_unit(role, facts, host)
        release = self.release(name)
        desired = Desired(
            name, release.name, release.description, sha256_of(text)[:DIGEST_DIGITS], sha256_of(unit),
            mark_of(unit), self._valid_certificates(name), _sha256(root / ROOTS_FILE),
            _sha256(root / "records" / f"{COORDINATOR}.record"), self.fleet.care, role,
            self._lists(role, name), _sha256(root / REVOKED_FILE),
            sha256_of(self.targets()) if role.name == COORDINATOR else "",
        )  # fmt: skip
        return Target(desired, text, unit, self.files(name, text))

    def targets(self) -> str:
        return targets_text(self.fleet, self.federation)

    def files(self, name: str, text: str) -> dict[str, str]:
        """Return the files that are installed together with the signed settings that have this text.

        Mosquitto cannot read our signed statements, so a broker gets its settings as a plain file too.
        """
        return {"mosquitto.conf": text} if self.role(name).name == BROKER else {}

    def _lists(self, role: Role, name: str) -> str:
        if role.name == COORDINATOR:
            lines = (f"{file_digest(path)}  {path.name}\n" for path in self.records())
            return sha256_of("".join(lines))
        path = Path(self.fleet.root) / "approvals" / f"{name}.approval"
        if role.name != BROKER or not path.exists():
            return ""
        approval = unverified_approval(read_approval_file(path))
        return hashlib.sha256(approval.crl + approval.rules.encode()).hexdigest()

    def records(self) -> list[Path]:
        """Return the record files of all enrolled names, as a coordinator reads them."""
        return sorted((Path(self.fleet.root) / "records").glob("*.record"))

    def broker_keys(self, name: str) -> dict[str, bytes]:
        """Return the newest keys, certificate and lists of the broker.

        They are made here, because the broker's host has no program that can make them.
        """
        folder, authority = Path(self.fleet.broker), self.authority
        with self._lock:
            if not (folder / CURRENT).exists():
                enrol(authority, folder, name, DAYS, (self._broker_address(),))
            else:
                self._renew_broker(name, folder)
                path = Path(self.fleet.root) / "approvals" / f"{name}.approval"
                install(
                    folder,
                    read_approval_file(path),
                    expect_fingerprint(authority.fingerprint),
                    authority.now(),
                )
            return {file: (folder / CURRENT / file).read_bytes() for file in BROKER_FILES}

    def _renew_broker(self, name: str, folder: Path) -> None:
        """Renew the broker's certificate for the same keys, if that is needed.

        The earlier addresses of the broker stay in its certificate, for devices that still use one of them.
        """
        known = self._names_in_certificate(name)
        if self._broker_address() not in known:
            hosts = (self._broker_address(), *known)[:MAX_HOSTS]
            _, data = make_request(folder, self.federation, name, hosts, new_keys=False)
            approve(self.authority, review_request(self.authority, data, name, BROKER))
        elif not self._valid_certificates(name):
            renew(self.authority, name)

    def _broker_address(self) -> str:
        return broker_address(self.fleet).host

    def _names_in_certificate(self, name: str) -> list[str]:
        path = Path(self.fleet.root) / "certs" / f"{name}.crt"
        return host_names(x509.load_pem_x509_certificate(path.read_bytes())) if path.exists() else []

    def installed_settings(self, name: str, data: bytes) -> InstalledSettings:
        """Return the digest and the version of installed settings.

        They are empty unless our root has signed the settings for this host.
        """
        found = self._read(data)
        if found is None or found.name != name:
            return InstalledSettings()
        return InstalledSettings(sha256_of(found.text)[:DIGEST_DIGITS], found.version)

    def signed_settings(self, name: str, text: str, above: int) -> str:
        """Sign settings with a version that is higher than `above` and all earlier versions."""
        settings = SignedSettings(self.federation, name, max(int(time.time()), above + 1), text)
        return armoured(SETTINGS, issue_settings(settings, self.authority.keys))

    def release_folder(self, name: str) -> Path:
        """Return the folder that is shipped to this host, with the manifest that the host verifies."""
        release = self.release(name)
        folder = release.folder
        with self._lock:
            if not (folder / MANIFEST).exists():
                (folder / INSTALL_FILE).write_text("\n".join([*release.install_arguments, ""]))
                text = self.manifest(f"release {release.name}", files_of(folder))
                (folder / MANIFEST).write_text(text)
        return folder

    def manifest(self, subject: str, files: Mapping[str, str]) -> str:
        return issue_manifest(self.federation, subject, files, self.authority.keys)

    def roots(self) -> str:
        return (Path(self.fleet.root) / ROOTS_FILE).read_text()

    def signed_tuning(self, name: str, changes: Sequence[str], hours: float) -> str:
        """Sign overrides of settings that are valid for some hours; raise SettingsError for a mistake.

        A mistake is thus found here and not on the device.
        """
        for change in changes:
            if "=" not in change:
                raise SettingsError(
                    f"--set is {change!r}, which is not of the form KEY=VALUE, as paused=true"
                )
        text = write_toml(encode(decode(Overrides, override({}, changes), "tuning")))
        now = int(time.time())
        if not 0 < hours * 3600 <= LONGEST_SECONDS:
            raise SettingsError(
                f"--hours is {hours:g}, it must be above 0 and at most {LONGEST_SECONDS // 3600}"
            )
        tuning = SignedTuning(self.federation, name, now, now + int(hours * 3600), text)
        return armoured(TUNING, issue_tuning(tuning, self.authority.keys))

    def verified_settings_text(self, data: bytes) -> str:
        found = self._read(data)
        if found is None:
            raise RunError("the earlier settings on the device are not signed by our root")
        return found.text

    def approval(self, name: str, request: str) -> str:
        """Return the approval of a host's request.

        If the keys in the request are new to us, a person compares the request's fingerprint.
        """
        with self._lock:
            asked = self._review(name, request)
            if self._approved_before(name, asked):
                if self.role(name).name == COORDINATOR and self._valid_certificates(name):
                    # A new record of the coordinator would have to be sent to all devices.
                    reissue_approvals(self.authority, COORDINATOR)
                else:
                    renew(self.authority, name)
            elif not self._confirm(name, asked.fingerprint):
                raise RunError(
                    f"{name} was not approved: nobody has confirmed the fingerprint {asked.fingerprint}"
                )
            else:
                approve(self.authority, asked, replace=self._replace)
            return (Path(self.fleet.root) / "approvals" / f"{name}.approval").read_text()

    def _review(self, name: str, request: str) -> ReviewedRequest:
        """Read a host's request; raise RunError if it is bad or asks for another name or role.

        A bad request lets only the deployment of this host fail.
        """
        try:
            data = from_armour(REQUEST, request.encode(), f"the request of {name}")
            return review_request(self.authority, data, name, self.role(name).name)
        except StatementError as error:
            raise RunError(f"{name} was not approved: {printable(str(error))}") from None

    def readmit(self, name: str) -> str:
        """Issue new rules for the brokers if the name was revoked before; return what was done, or "".

        With the old rules, brokers deny all topics to the name, even if it has new keys.
        """
        with self._lock:
            if not self.was_revoked(name):
                return ""
            reissue_approvals(self.authority, "broker")
            if self.fleet.of_role(BROKER):
                return "it was revoked before; the broker is told that it is back"
            if not self.fleet.broker:
                where = Path(self.fleet.root) / "approvals"
                return (
                    f"it was revoked before: install the brokers' approvals from {where} and let them reload"
                )
            disconnect.install_broker(self.authority, Path(self.fleet.broker))
            disconnect.reload(Path(self.fleet.broker))
            return "it was revoked before; the broker accepts the name again"

    def revocation(self, name: str) -> str:
        """Return when and why this name was revoked; "" if it is not revoked, or is enrolled again."""
        latest = self.authority.register.latest(name)
        if latest is None or not latest.revoked_at:
            return ""
        return f"{day(latest.revoked_at)}{f', {latest.reason}' if latest.reason else ''}"

    def refusal(self, name: str) -> str:
        """Return the reason why nothing in the fleet's file is deployed to this host, or ""."""
        if self._replace or not (revoked := self.revocation(name)):
            return ""
        return (
            f"it was revoked ({revoked}); take it out of the fleet's file, or say --replace to bring it back with "
            "new keys"
        )

    def older_root(self, facts: Mapping[str, Facts]) -> str:
        """Return the reason why nothing may be made of this root, or "".

        The reason is that one of these hosts, or the folder of our own broker, holds later lists than this
        root.
        """
        held = {
            name: read_held(self.authority, here.held_revoked, here.held_roots, here.held_crl)
            for name, here in ((name, one.installed) for name, one in facts.items())
        }
        if self.fleet.broker and (path := Path(self.fleet.broker) / CURRENT / KNOWN_REVOKED).exists():
            held[self.fleet.broker] = read_held(self.authority, read_armoured(REVOCATIONS, path))
        return older_root.problem(self.authority, held, self.fleet.of_role(DEVICE.name))

    def was_revoked(self, name: str) -> bool:
        return any(e.name == name and e.revoked_at for e in self.authority.register.entries)

    def _approved_before(self, name: str, asked: ReviewedRequest) -> bool:
        """Return whether these keys were approved before; raise RunError if they were revoked.

        Revoked keys are never approved again.
        """
        latest = self.authority.register.latest(name)
        if latest is None:
            return False
        same = same_keys(self.authority, asked)
        if same and latest.revoked_at:
            problem = f"{name} was revoked with the keys that it still has"
            raise RunError(f"{problem}; `protofleet deploy revoke {name}` destroys them, then deploy again")
        return same

    def _valid_certificates(self, name: str) -> frozenset[str]:
        """Return the SHA-256 of this name's certificate; an empty set if the certificate must be renewed."""
        latest, now = self.authority.register.latest(name), self.authority.now()
        if latest is None or not latest.is_valid(now + RENEW_BEFORE_SECONDS) or latest.revoked_at:
            return frozenset()
        if self.role(name).name == BROKER and self._broker_address() not in self._names_in_certificate(name):
            # Clients that connect to the broker's present address would refuse this certificate.
            return frozenset()
        return frozenset({_sha256(Path(self.fleet.root) / "certs" / f"{name}.crt")})

    def _read(self, data: bytes) -> SignedSettings | None:
        try:
            return read_settings(data, [root.public for root in self.authority.roots])
        except StatementError:
            return None


def open_root(fleet: Fleet) -> Authority:
    """Open the fleet's root; raise the error of a lost root if the root is gone.

    A deployment, an enrolled broker or `init` leaves files. If they exist and the root does not, the root is
    lost.
    """
    root, left = Path(fleet.root), [Path(fleet.log), Path(fleet.file).parent / TARGETS_FILE]
    if fleet.broker:
        left.append(Path(fleet.broker) / CURRENT)
    try:
        return Authority(root)
    except NoRootError:
        if any(path.exists() for path in left):
            raise lost(root, root) from None
        raise


def _sha256(path: Path) -> str:
    return file_digest(path) if path.exists() else ""
