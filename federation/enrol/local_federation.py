"""Enrol a whole federation on one machine, for local runs, stacks and tests.

One folder contains all key folders of the federation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509

from protofleet.federation.brokers.mosquitto import CONF_FILE, ListenerSettings, tls_settings
from protofleet.federation.enrol.authority import Authority, make_authority
from protofleet.federation.enrol.certificates import host_names
from protofleet.federation.enrol.key_folder import (
    expect_fingerprint,
    install,
    make_request,
    read_approval_file,
)
from protofleet.federation.enrol.lifecycle import DAYS, approve, reissue_approvals, review_request
from protofleet.protocol.security.enrolment import CURRENT, STANDBY_CERT, TLS_CA, TLS_CERT, TLS_KEY
from protofleet.protocol.security.keyfiles import write_file
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.transport.address import TlsFiles
from protofleet.protocol.wire.names import COORDINATOR, RESERVED_RULE, is_reserved, valid_device

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

    def renew_broker(self, hosts: tuple[str, ...], days: float = DAYS) -> bool:
        """Make the broker's certificate again if it is for other hosts; return whether it was made.

        The broker keeps its keys, so all parties accept the new certificate at once.
        """
        folder = self.folder_of(BROKER)
        cert = x509.load_pem_x509_certificate((folder / CURRENT / TLS_CERT).read_bytes())
        if sorted(host_names(cert)) == sorted(hosts):
            return False
        enrol_again(self.authority(), folder, BROKER, days, hosts)
        return True


def tls_files(folder: Path) -> TlsFiles:
    """Return the [broker] tls settings of the device or coordinator that is enrolled in this folder."""
    current = folder / CURRENT
    return TlsFiles(str(current / TLS_CA), str(current / TLS_CERT), str(current / TLS_KEY))


def enrol_federation(
    folder: Path,
    federation: str,
    devices: Iterable[str],
    hosts: tuple[str, ...] = LOOPBACK,
    days: float = DAYS,
) -> LocalFederation:
    """Enrol all names that are not enrolled yet.

    The coordinator is enrolled before the devices, because the approvals of devices contain the coordinator's record.
    """
    local = LocalFederation(folder)
    names = [valid_device(name) for name in devices]
    if BROKER in names:
        raise SettingsError(
            f"a device of this fleet cannot be called {BROKER!r}, because the broker has this name"
        )
    if taken := [n for n in names if is_reserved(n) and not (local.folder_of(n) / CURRENT).exists()]:
        raise SettingsError(f"a device of this fleet cannot be called {taken[0]!r}: {RESERVED_RULE}")
    if local.root.exists():
        authority = local.authority()
    else:
        authority = make_authority(local.root, federation, YEARS, durable=False)
    with authority.batch():
        enrol(authority, local.folder_of(BROKER), BROKER, days, hosts)
        for name in (COORDINATOR, *names):
            enrol(authority, local.folder_of(name), name, days)
    _add_standby(authority, local)
    return local


def _add_standby(authority: Authority, local: LocalFederation) -> None:
    """Give a coordinator that an earlier release has enrolled a second certificate, and its broker the new rules."""
    if (local.folder_of(COORDINATOR) / CURRENT / STANDBY_CERT).exists():
        return
    confirm, now = expect_fingerprint(authority.fingerprint), authority.now()
    for name in reissue_approvals(authority, BROKER, COORDINATOR):
        if not (local.folder_of(name) / CURRENT).exists():  # a broker on another machine
            continue
        data = read_approval_file(authority.folder / "approvals" / f"{name}.approval")
        install(local.folder_of(name), data, confirm, now, authority.durable)


def enrol(authority: Authority, folder: Path, name: str, days: float, hosts: tuple[str, ...] = ()) -> None:
    """Enrol a name that is not enrolled yet, in one step, because both sides are on this machine."""
    if not (folder / CURRENT).exists():
        enrol_again(authority, folder, name, days, hosts)


def enrol_again(
    authority: Authority, folder: Path, name: str, days: float, hosts: tuple[str, ...] = ()
) -> None:
    """Make a request with the keys in the folder, approve it and install the approval."""
    request, data = make_request(
        folder, authority.federation, name, hosts, new_keys=False, durable=authority.durable
    )
    approval = approve(authority, review_request(authority, data, name, request.part), days)
    confirm = expect_fingerprint(authority.fingerprint)
    install(folder, approval, confirm, authority.now(), authority.durable)


def write_mosquitto_conf(folder: Path, listener: ListenerSettings, mounted_at: Path | None = None) -> Path:
    """Write a broker's mosquitto.conf into the folder of the broker's enrolled files.

    `mounted_at` is the path at which the broker's container sees this folder.
    """
    path = folder / CONF_FILE
    (folder / "data").mkdir(exist_ok=True, mode=0o700)
    write_file(path, tls_settings(mounted_at or folder, listener).encode(), durable=False)
    return path
