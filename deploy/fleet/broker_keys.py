"""Make the keys, the certificate and the lists of the fleet's broker on the machine with the root."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from protofleet.deploy.fleet.certificates import Certificates
from protofleet.deploy.fleet.device.roles import BROKER
from protofleet.deploy.fleet.settings import Fleet
from protofleet.federation.brokers.mosquitto import ACL_FILE, CRL_FILE
from protofleet.federation.enrol.authority import Authority
from protofleet.federation.enrol.key_folder import (
    expect_fingerprint,
    install,
    make_request,
    read_approval_file,
)
from protofleet.federation.enrol.lifecycle import DAYS, approve, renew, review_request
from protofleet.federation.enrol.local_federation import enrol
from protofleet.federation.enrol.request import MAX_HOSTS
from protofleet.protocol.security.enrolment import CURRENT, ROOTS_FILE, TLS_CA, TLS_CERT, TLS_KEY

BROKER_FILES: Final = (TLS_CA, TLS_CERT, TLS_KEY, CRL_FILE, ACL_FILE, ROOTS_FILE)


class BrokerKeys:
    """The key folder of the broker, which is kept on this machine."""

    def __init__(
        self, fleet: Fleet, authority: Authority, certificates: Certificates,
        lock: AbstractContextManager[object],
    ) -> None:  # fmt: skip
        """Open the folder; `lock` ensures that only one thread signs at a time."""
        self._fleet, self._authority, self._certificates, self._lock = fleet, authority, certificates, lock

    def newest(self, name: str) -> dict[str, bytes]:
        """Return the newest keys, certificate and lists of the broker.

        The keys are made on this machine, because the broker's host has no program that can make them.
        """
        folder, authority = Path(self._fleet.broker), self._authority
        with self._lock:
            if not (folder / CURRENT).exists():
                enrol(authority, folder, name, DAYS, (self._certificates.broker_address,))
            else:
                self._renew(name, folder)
                path = Path(self._fleet.root) / "approvals" / f"{name}.approval"
                install(
                    folder,
                    read_approval_file(path),
                    expect_fingerprint(authority.fingerprint),
                    authority.now(),
                )
            return {file: (folder / CURRENT / file).read_bytes() for file in BROKER_FILES}

    def _renew(self, name: str, folder: Path) -> None:
        """Renew the broker's certificate if the broker's address has changed or the certificate ends soon.

        The keys do not change. The earlier addresses of the broker stay in its certificate, because a device may
        still use one of these addresses.
        """
        known, address = self._certificates.names_in(name), self._certificates.broker_address
        if address not in known:
            hosts = (address, *known)[:MAX_HOSTS]
            _, data = make_request(folder, self._authority.federation, name, hosts, new_keys=False)
            approve(self._authority, review_request(self._authority, data, name, BROKER))
        elif not self._certificates.valid(name):
            renew(self._authority, name)
