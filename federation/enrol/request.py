"""Make and read the request of a device, coordinator, broker or operator to join a federation.

The request has the sender's public keys, and a proof that the sender has the private keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from protofleet.federation.enrol import certificates
from protofleet.federation.enrol.certificates import new_csr, read_csr
from protofleet.protocol.security.operators import OPERATOR
from protofleet.protocol.security.records import KEY
from protofleet.protocol.security.statements import (
    Reader,
    StatementError,
    StatementFault,
    Writer,
    sign_statement,
    unverified_body,
    verified_body,
)
from protofleet.protocol.security.weak_keys import check_keys
from protofleet.protocol.wire.names import COORDINATOR, valid_name

REQUEST: Final = "request"
BROKER: Final = "broker"
MAX_HOSTS: Final = 16
MAX_CSR: Final = 2048

Part: TypeAlias = Literal["device", "coordinator", "broker", "operator"]
PARTS: Final[tuple[Part, ...]] = get_args(Part)


@dataclass(frozen=True, slots=True)
class PrivateKeys:
    """The private keys of a participant. They are made on its own machine, and are never sent or printed."""

    identity: Ed25519PrivateKey
    receive: X25519PrivateKey
    tls: EllipticCurvePrivateKey

    def __repr__(self) -> str:
        return "PrivateKeys(...)"


@dataclass(frozen=True, slots=True)
class Request:
    federation: str
    name: str
    part: Part
    hosts: tuple[str, ...]  # The names and addresses to which clients connect; only a broker has them.
    sign: bytes
    receive: bytes
    csr: bytes  # The request for a TLS certificate: PKCS#10 in the form DER, signed by the TLS key.

    def __post_init__(self) -> None:
        valid_name(self.federation)
        valid_name(self.name)
        if self.part not in PARTS or part_by_name(self.name, self.hosts, self.part) != self.part:
            raise ValueError(
                f"the name {self.name!r} and {len(self.hosts)} host names do not fit the part {self.part!r}"
            )
        for host in self.hosts:
            if not host or len(host) > 253 or not host.isprintable() or set(host) & set(" /,*"):
                raise ValueError(f"{host!r} is neither a host name nor an address")
            certificates.alternative_name(host)
        check_keys(self.sign, self.receive)
        read_csr(self.csr, self.name)

    @property
    def csr_key(self) -> bytes:
        return certificates.public_bytes(read_csr(self.csr, self.name).public_key())


def part_by_name(name: str, hosts: tuple[str, ...], asked: str = "") -> Part:
    """Return the part of a party; only `asked` tells an operator from a device."""
    if hosts:
        return "broker"
    if name == COORDINATOR:
        return "coordinator"
    return OPERATOR if asked == OPERATOR else "device"


def new_request(
    federation: str, name: str, hosts: tuple[str, ...], keys: PrivateKeys, part: str = ""
) -> tuple[Request, bytes]:
    sign = keys.identity.public_key().public_bytes_raw()
    receive = keys.receive.public_key().public_bytes_raw()
    csr = new_csr(valid_name(name), keys.tls)
    request = Request(federation, name, part_by_name(name, hosts, part), hosts, sign, receive, csr)
    fields = Writer().text(federation).text(name).text(request.part).blobs([host.encode() for host in hosts])
    return request, sign_statement(REQUEST, fields.blob(sign).blob(receive).blob(csr).done(), [keys.identity])


def read_request(data: bytes) -> Request:
    """Return the request; raise StatementError if the data are malformed or have a wrong signature."""
    fields = Reader(REQUEST, unverified_body(REQUEST, data))
    federation, name, part = fields.text(), fields.text(), fields.text()
    hosts = fields.blobs(MAX_HOSTS, 253)
    sign, receive, csr = fields.blob(KEY, KEY), fields.blob(KEY, KEY), fields.blob(MAX_CSR)
    fields.end()
    verified_body(REQUEST, data, [sign])
    try:
        names = tuple(host.decode() for host in hosts)
        return Request(federation, name, part, names, sign, receive, csr)  # type: ignore[arg-type]
    except ValueError as error:
        raise StatementError(StatementFault.MALFORMED, f"an invalid request: {error}") from None
