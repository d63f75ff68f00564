"""A whole federation enrolled on one machine, for simulations, stacks and tests: all folders of keys under one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protofleet.deploy.brokers.mosquitto import CONF, ListenerSettings, secured_settings
from protofleet.deploy.enrol.authority import Authority, make_authority
from protofleet.deploy.enrol.key_folder import install, make_request
from protofleet.deploy.enrol.lifecycle import DAYS, approve, review_request
from protofleet.protocol.security.enrolment import CURRENT, TLS_CA, TLS_CERT, TLS_KEY
from protofleet.protocol.security.keyfiles import write_file
from protofleet.protocol.security.statements import same_fingerprint
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.transport.address import TlsFiles
from protofleet.protocol.wire.names import COORDINATOR, valid_device

BROKER: Final = "broker"
LOOPBACK: Final = ("localhost", "127.0.0.1")
YEARS: Final = 10.0


@dataclass(frozen=True, slots=True)
class LocalFederation:
    folder: Path

    @property
    def root(self) -> Path:
        return self.folder / "root"

    def folder_of(self, name: str) -> Path:
        return self.folder / name if name in (BROKER, COORDINATOR) else self.folder / "devices" / name

    def tls(self, name: str) -> TlsFiles:
        return tls_files(self.folder_of(name))

    def authority(self) -> Authority:
        return Authority(self.root, durable=False)


def tls_files(folder: Path) -> TlsFiles:
    """What goes into [broker] tls of whoever is enrolled in this folder."""
    place = folder / CURRENT
    return TlsFiles(str(place / TLS_CA), str(place / TLS_CERT), str(place / TLS_KEY))


def enrol_federation(
    folder: Path,
    federation: str,
    devices: Iterable[str],
    hosts: tuple[str, ...] = LOOPBACK,
    days: float = DAYS,
) -> LocalFederation:
    """What is enrolled already stays; the coordinator comes before the devices, whose approvals hold its record."""
    made = LocalFederation(folder)
    names = [valid_device(name) for name in devices]
    if BROKER in names:
        raise SettingsError(
            f"a device of this fleet cannot be called {BROKER!r}: the broker's certificate is"
        )
    if made.root.exists():
        authority = made.authority()
    else:
        authority = make_authority(made.root, federation, YEARS, durable=False)
    with authority.at_once():
        enrol(authority, made.folder_of(BROKER), BROKER, days, hosts)
        for name in (COORDINATOR, *names):
            enrol(authority, made.folder_of(name), name, days)
    return made


def enrol(authority: Authority, folder: Path, name: str, days: float, hosts: tuple[str, ...] = ()) -> None:
    """Request, approval and installation in one step: both ends are on this machine."""
    if (folder / CURRENT).exists():
        return
    made, data = make_request(
        folder, authority.federation, name, hosts, fresh=False, durable=authority.durable
    )
    approval = approve(authority, review_request(authority, data, name, made.part), days)
    wanted = authority.fingerprint

    def confirm(seen: str) -> bool:
        return same_fingerprint(seen, wanted)

    install(folder, approval, confirm, authority.now(), authority.durable)


def write_mosquitto_conf(folder: Path, listener: ListenerSettings, mounted_at: Path | None = None) -> Path:
    """A broker's mosquitto.conf beside its enrolled files, which its container sees at `mounted_at`."""
    path = folder / CONF
    (folder / "data").mkdir(exist_ok=True, mode=0o700)
    write_file(path, secured_settings(mounted_at or folder, listener).encode(), durable=False)
    return path
