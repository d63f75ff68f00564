"""Find the certificates of the fleet's hosts, and decide which of them must be renewed."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cryptography import x509

from protofleet.deploy.fleet.device.roles import BROKER
from protofleet.deploy.fleet.settings import Fleet, broker_address
from protofleet.deploy.fleet.software import file_digest
from protofleet.federation.enrol.authority import Authority
from protofleet.federation.enrol.certificates import host_names

# A certificate is renewed if it is valid for fewer seconds than this.
RENEW_BEFORE_SECONDS: Final = 30 * 86_400


class Certificates:
    """The certificates that the root has issued to the hosts of a fleet."""

    def __init__(self, fleet: Fleet, authority: Authority) -> None:
        self._fleet, self._authority = fleet, authority

    def valid(self, name: str) -> frozenset[str]:
        """Return a set with one element, the SHA-256 of the certificate of the host `name`.

        The set is empty if the certificate must be renewed.
        """
        latest, now = self._authority.register.latest(name), self._authority.now()
        if latest is None or not latest.is_valid(now + RENEW_BEFORE_SECONDS) or latest.revoked_at:
            return frozenset()
        if self._fleet.hosts[name].role == BROKER and self.broker_address not in self.names_in(name):
            # The certificate does not have the broker's present address, so clients would refuse it.
            return frozenset()
        return frozenset({digest_if_present(Path(self._fleet.root) / "certs" / f"{name}.crt")})

    @property
    def broker_address(self) -> str:
        return broker_address(self._fleet).nodes[0].host

    def names_in(self, name: str) -> list[str]:
        """Return the host names and addresses in this name's certificate."""
        path = Path(self._fleet.root) / "certs" / f"{name}.crt"
        return host_names(x509.load_pem_x509_certificate(path.read_bytes())) if path.exists() else []


def digest_if_present(path: Path) -> str:
    """Return the SHA-256 of a file; "" if there is no such file."""
    return file_digest(path) if path.exists() else ""
