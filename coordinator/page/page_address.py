"""The address of the page, and its certificate.

On the loopback, all users of the machine may view the page. At any other address, the page needs TLS, and a viewer
needs a login.
"""

from __future__ import annotations

import contextlib
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from protofleet.protocol.security.keyfiles import too_open
from protofleet.protocol.settings.bounds import OptionalPort
from protofleet.runtime.command.errors import RunError
from protofleet.runtime.live.access import LOOPBACK_NAMES, PageAccess
from protofleet.runtime.metrics_page import HOST


@dataclass(frozen=True, slots=True)
class PageAddress:
    host: str
    port: OptionalPort  # 0 if there is no page.
    cert: str = ""
    key: str = ""

    def __post_init__(self) -> None:
        if not HOST.fullmatch(self.host):
            raise ValueError(
                f"page_host is {self.host!r}, it must be an address of this machine, or 0.0.0.0 for every address"
            )
        if bool(self.cert) != bool(self.key):
            given, missing = ("page_cert", "page_key") if self.cert else ("page_key", "page_cert")
            raise ValueError(
                f"{given} is set, but {missing} is not; set both, or none for HTTP on the loopback"
            )
        if not self.cert and not self.is_loopback:
            raise ValueError(
                f"page_host is {self.host}, which other machines can reach, so page_cert and page_key must name a "
                "certificate and its key; or leave page_host out, and forward the port with ssh -L"
            )

    @property
    def is_loopback(self) -> bool:
        with contextlib.suppress(ValueError):
            return ipaddress.ip_address(self.host).is_loopback
        return self.host == "localhost"

    def access(self) -> PageAccess:
        """Return the rules for requests; read the certificate and its key."""
        own = LOOPBACK_NAMES if self.is_loopback else ()
        if not self.cert:
            return PageAccess(self.port, _once(*own, _in_url(self.host)))
        tls, names = self._tls(), self._names()
        return PageAccess(self.port, _once(*names, *own), tls, not self.is_loopback)

    def _tls(self) -> ssl.SSLContext:
        if problem := too_open(Path(self.key)):
            raise RunError(f"page_key: {problem}")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            context.load_cert_chain(self.cert, self.key)
        except OSError as error:  # SSLError is one, too.
            raise RunError(
                f"page_cert {self.cert} with page_key {self.key} cannot be used ({error.strerror or error}); "
                "both must be PEM files, and the key must belong to the certificate"
            ) from None
        return context

    def _names(self) -> tuple[str, ...]:
        """Return the names in the certificate as a browser writes them in an address."""
        cert = x509.load_pem_x509_certificate(Path(self.cert).read_bytes())
        found: list[str] = []
        with contextlib.suppress(x509.ExtensionNotFound):
            names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            found = [
                *names.get_values_for_type(x509.DNSName),
                *(_in_url(str(address)) for address in names.get_values_for_type(x509.IPAddress)),
            ]
        plain = tuple(name for name in found if "*" not in name)
        if not plain:
            raise RunError(
                f"page_cert {self.cert} has no name without *, so no browser can use it; make a certificate with "
                "the name of this machine as a subject alternative name"
            )
        return plain

    def url(self, access: PageAccess) -> str:
        """Return the address of the page for a browser."""
        host = _in_url(self.host)
        return f"{access.scheme}://{host if host in access.names else access.names[0]}:{self.port}/"


def _once(*names: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
