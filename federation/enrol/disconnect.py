"""End the connection of a revoked name at a running Mosquitto.

After SIGHUP, Mosquitto reads its list of revoked certificates and its access rules again. It uses the list only
for new connections. A connected client stays connected, but the new rules deny it all topics. A second connection
with the same client id ends the first connection. When the revoked client connects again, Mosquitto refuses it
because of the list. (This was tested with version 2.0.11.)
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from cryptography import x509

from protofleet.federation.brokers.ejabberd import SETTINGS_FILE
from protofleet.federation.brokers.mosquitto import CONF_FILE, PID_FILE
from protofleet.federation.enrol.authority import Authority
from protofleet.federation.enrol.certificates import host_names, new_key
from protofleet.federation.enrol.key_folder import expect_fingerprint, install, read_approval_file
from protofleet.federation.enrol.lifecycle import revoke
from protofleet.protocol.security.keyfiles import write_file, write_private
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.transport.address import BrokerAddress, BrokerError, TlsFiles, preflight
from protofleet.protocol.wire.names import COORDINATOR, STANDBY

CHECK_SECONDS: Final = 600
RELOAD_SECONDS: Final = 10.0


def revoke_and_disconnect(authority: Authority, name: str, reason: str, folder: Path) -> str:
    """Revoke a name, update the broker with the enrolled files in `folder`, and end the name's connection."""
    broker_name(authority, folder)
    address = broker_address(folder)
    with temporary_certificate(authority, f"check-{secrets.token_hex(4)}") as (serial, test_client):
        entries = revoke(authority, name, reason, also=[serial])
        install_broker(authority, folder)
        reload(folder)
        wait_until_refused(replace(address, tls=test_client))
    disconnect(authority, name, address)
    return f"{name} is revoked ({len(entries)} certificates) and disconnected from {address}"


def install_broker(authority: Authority, folder: Path) -> None:
    name = broker_name(authority, folder)
    data = read_approval_file(authority.folder / "approvals" / f"{name}.approval")
    install(folder, data, expect_fingerprint(authority.fingerprint), authority.now(), authority.durable)


def broker_name(authority: Authority, folder: Path) -> str:
    """Return the name of the federation's broker that is enrolled in this folder."""
    installed = (folder / "current" / "tls.crt").read_text() if (folder / "current").exists() else ""
    for entry in authority.register.current_entries(authority.now()):
        cert = authority.folder / "certs" / f"{entry.name}.crt"
        if entry.part == "broker" and cert.exists() and cert.read_text() == installed:
            return entry.name
    raise SettingsError(
        f"no broker of this federation is enrolled in {folder}; `enrol broker` enrols a broker"
    )


def disconnect(authority: Authority, name: str, address: BrokerAddress) -> None:
    """End the connections of this name, and delete the messages that the broker has queued for it."""
    for own in (COORDINATOR, STANDBY) if name == COORDINATOR else (name,):
        with temporary_certificate(authority, own) as (_, files):
            if problem := preflight(replace(address, tls=files)):
                raise BrokerError(f"{own} could not be disconnected: {problem}; restart the broker")


def reload(folder: Path) -> None:
    """Send SIGHUP to the Mosquitto process that was started with this folder's settings."""
    path = folder / PID_FILE
    try:
        pid = int(path.read_text())
        comm = Path(f"/proc/{pid}/comm")
        if comm.parent.parent.is_dir() and "mosquitto" not in comm.read_text():
            raise ProcessLookupError  # Another program has this process id now.
        os.kill(pid, signal.SIGHUP)
    except PermissionError:
        raise BrokerError(
            f"the new files are installed, but the Mosquitto of {folder} runs as another user; as root, let "
            f"Mosquitto reload the files: kill -HUP {path.read_text().strip()}"
        ) from None
    except (FileNotFoundError, ValueError, ProcessLookupError):
        raise BrokerError(
            f"the new files are installed, but no Mosquitto has the process id in {path}; send SIGHUP to Mosquitto"
        ) from None


def broker_address(folder: Path) -> BrokerAddress:
    """Return the address of this folder's broker, for clients on this machine."""
    path = folder / CONF_FILE
    if (folder / SETTINGS_FILE).exists():
        raise SettingsError(
            f"{folder} belongs to ejabberd, which reads no list of revoked names: revoke the name without --broker, "
            "write the rules again with `protofleet enrol broker --kind ejabberd`, and restart the nodes"
        )
    found = re.search(r"^listener (\d+) (\S+)", path.read_text(), re.MULTILINE) if path.exists() else None
    if found is None:
        raise SettingsError(f"{path} is missing or has no listener; `enrol broker` writes this file")
    cert = x509.load_pem_x509_certificate((folder / "current" / "tls.crt").read_bytes())
    names = host_names(cert)
    return BrokerAddress(found[2] if found[2] in names else names[0], int(found[1]))


@contextlib.contextmanager
def temporary_certificate(authority: Authority, name: str) -> Iterator[tuple[int, TlsFiles]]:
    """Yield the serial number and the TLS files of a temporary client certificate under this name.

    The files are deleted at the end of the block.
    """
    key = new_key()
    serial, cert = authority.issue_check_certificate(name, key.public_key(), CHECK_SECONDS)
    authority.save()
    with tempfile.TemporaryDirectory() as name_of_folder:
        folder = Path(name_of_folder)
        write_private(folder / "key", key, durable=False)
        write_file(folder / "cert", cert, durable=False)
        write_file(folder / "ca", authority.ca_bundle(), durable=False)
        yield serial, TlsFiles(str(folder / "ca"), str(folder / "cert"), str(folder / "key"))


def wait_until_refused(address: BrokerAddress) -> None:
    deadline = time.monotonic() + RELOAD_SECONDS
    while "revoked" not in (problem := preflight(address) or ""):
        if time.monotonic() > deadline:
            found = problem or "it accepts the revoked certificate"
            raise BrokerError(f"{address} does not use the new revocation list ({found}); restart the broker")
        time.sleep(0.05)
