"""Compute the desired state of each host, and the texts of its files."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protofleet.coordinator.config import CoordinatorSettings
from protofleet.deploy.fleet.certificates import Certificates, digest_if_present
from protofleet.deploy.fleet.device import shipped_template
from protofleet.deploy.fleet.device.facts import Facts, Installed
from protofleet.deploy.fleet.device.roles import BROKER, DEVICE, ROLES, Role
from protofleet.deploy.fleet.device.scripts import HostRole
from protofleet.deploy.fleet.device.shipped_plugins import at_the_host
from protofleet.deploy.fleet.device.unit import mark_of, service_unit, sha256_of, unit_of
from protofleet.deploy.fleet.device.verify import ENDING, HELD_SIGNERS, ROOTS, SIGNERS
from protofleet.deploy.fleet.plan import Desired
from protofleet.deploy.fleet.settings import (
    Fleet,
    broker_conf,
    broker_port,
    coordinator_settings,
    device_settings,
    naming_file,
    plugin_files,
    queue_settings,
    template_files,
)
from protofleet.deploy.fleet.signer import settings_digest
from protofleet.deploy.fleet.software import Release, Releases, file_digest
from protofleet.deploy.fleet.targets import targets_text
from protofleet.edge_client.config import DeviceSettings
from protofleet.federation.enrol.approval import unverified_approval
from protofleet.federation.enrol.authority import REVOKED_FILE, ROOTS_FILE, Authority
from protofleet.federation.enrol.key_folder import read_approval_file
from protofleet.federation.enrol.lifecycle import enrolled_devices
from protofleet.federation.enrol.ssh_signatures import allowed_signers
from protofleet.protocol.security.statements import StatementError
from protofleet.protocol.security.trust import first_roots
from protofleet.protocol.settings.reader import decode, encode, write_toml
from protofleet.protocol.wire.names import COORDINATOR


@dataclass(frozen=True, slots=True)
class Target:
    """The desired state of one host, and the texts of its files."""

    desired: Desired
    text: str
    unit: str
    # Files other than the settings and the unit: the text of each file by its name.
    files: Mapping[str, str] = field(default_factory=dict)


class DesiredState:
    """The desired state of a fleet's hosts, computed from the fleet's file, releases and root."""

    def __init__(
        self, fleet: Fleet, releases: Releases, authority: Authority, certificates: Certificates
    ) -> None:
        self._fleet, self._releases, self._authority = fleet, releases, authority
        self._certificates = certificates

    def role(self, name: str) -> Role:
        return ROLES[self._fleet.hosts[name].role]

    def place(self, name: str) -> HostRole:
        role, endpoint, models = self.role(name), "", ""
        if role.name == COORDINATOR:
            endpoint = self.coordinator_settings().endpoint().url("/health")
        elif role.name == BROKER:
            endpoint = str(broker_port(self._fleet))
        elif (settings := self.settings(name)).models is not None and settings.models.serves:
            models = str(settings.models.folder_in(Path(settings.folder)))
        return HostRole(role, self._fleet.software_of(name).python, endpoint, models)

    def release(self, name: str) -> Release:
        return self._releases.of(name)

    def settings(self, name: str) -> DeviceSettings:
        """Return the settings of a device."""
        return device_settings(self._fleet, self._authority.federation, name)

    def coordinator_settings(self) -> CoordinatorSettings:
        return coordinator_settings(self._fleet, self._authority.federation)

    @property
    def has_queue(self) -> bool:
        """Return whether the coordinator conducts submitted runs."""
        return queue_settings(self._fleet, self._authority.federation) is not None

    def text(self, name: str) -> str:
        """Return the text of a host's settings, for any role; raise SettingsError if the fleet's file is wrong."""
        match self.role(name).name:
            case "broker":
                return broker_conf(self._fleet, enrolled_devices(self._authority))
            case "coordinator":
                service = queue_settings(self._fleet, self._authority.federation)
                table = service.encoded() if service else encode(self.coordinator_settings())
            case _:
                table = encode(self.settings(name))
        return write_toml(self._there(name, table))

    def _there(self, name: str, table: dict[str, Any]) -> dict[str, Any]:
        """Return the settings of a host, with the paths that the shipped files have on the host."""
        plugins, template = plugin_files(self._fleet, name), template_files(self._fleet, name)
        if not (plugins or template):
            return table
        shipped = f"{self.role(name).top}/wheels/{self.release(name).name}"
        return shipped_template.at_the_host(at_the_host(table, plugins, shipped), shipped)

    def target(self, name: str, facts: Facts) -> Target:
        role, text, root = self.role(name), self.text(name), Path(self._fleet.root)
        host = self._fleet.hosts[name]
        with naming_file(self._fleet):
            if role == DEVICE:
                there = decode(
                    DeviceSettings, self._there(name, encode(self.settings(name))), f"device ({name})"
                )
                unit = unit_of(facts, host, there, self._fleet.software_of(name))
            else:
                unit = service_unit(role, facts, host)
        release = self.release(name)
        desired = Desired(
            name, release.name, release.description, settings_digest(text), sha256_of(unit),
            mark_of(unit), self._certificates.valid(name), digest_if_present(root / ROOTS_FILE),
            digest_if_present(root / "records" / f"{COORDINATOR}.record"), self._fleet.care, role,
            self._lists(role, name), digest_if_present(root / REVOKED_FILE),
            sha256_of(self.targets()) if role.name == COORDINATOR else "",
            sha256_of(self._authority.allowed_signers()[0]),
        )  # fmt: skip
        return Target(desired, text, unit, self.files(name, text))

    def targets(self) -> str:
        return targets_text(self._fleet, self._authority.federation)

    def files(self, name: str, text: str) -> dict[str, str]:
        """Return further files that are installed with the signed settings; `text` is the text of the settings.

        Mosquitto cannot read our signed statements, so a broker also gets its settings as a plain file.
        """
        return {"mosquitto.conf": text} if self.role(name).name == BROKER else {}

    def _lists(self, role: Role, name: str) -> str:
        if role.name == COORDINATOR:
            lines = (f"{file_digest(path)}  {path.name}\n" for path in self.records())
            return sha256_of("".join(lines))
        path = Path(self._fleet.root) / "approvals" / f"{name}.approval"
        if role.name != BROKER or not path.exists():
            return ""
        approval = unverified_approval(read_approval_file(path))
        return hashlib.sha256(approval.crl + approval.rules.encode()).hexdigest()

    def records(self) -> list[Path]:
        """Return the paths of the record files of all enrolled names, which a coordinator needs."""
        return sorted((Path(self._fleet.root) / "records").glob("*.record"))

    def roots_files(self, installed: Installed) -> dict[str, str]:
        """Return the files that make a host accept our roots, for the first time or after the roots have changed.

        A host that was deployed with an earlier release holds only the statement of its roots. ssh-keygen
        cannot read this statement, so the same roots are also sent in a form that ssh-keygen reads.
        """
        text, signatures = self._authority.allowed_signers()
        statement = (Path(self._fleet.root) / ROOTS_FILE).read_text()
        files = {ROOTS: statement, SIGNERS: text, SIGNERS + ENDING: signatures}
        with contextlib.suppress(
            StatementError
        ):  # The host holds no valid roots. If a step needs the roots, this step reports an error.
            files[HELD_SIGNERS] = allowed_signers(first_roots(installed.held_roots), installed.pinned)
        return files
