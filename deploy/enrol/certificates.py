"""X.509 for the broker's TLS: an authority, certificates that carry a name, and the list of revoked ones.

P-256: what every TLS library, hardware key store and Mosquitto build takes.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

PEM: Final = serialization.Encoding.PEM
DER: Final = serialization.Encoding.DER
SKEW: Final = dt.timedelta(hours=1)  # how far a clock may be behind
PublicKey: TypeAlias = ec.EllipticCurvePublicKey


@dataclass(frozen=True, slots=True)
class TlsCa:
    cert: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def new_tls_ca(federation: str, number: int, now: dt.datetime, until: dt.datetime) -> TlsCa:
    key = new_key()
    name = _name(f"{federation} broker CA {number}")
    built = _builder(name, name, key.public_key(), number, now - SKEW, until)
    built = built.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    built = built.add_extension(_usage(signs_certificates=True), critical=True)
    built = built.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return TlsCa(built.sign(key, hashes.SHA256()), key)


def issue_for_request(
    authority: TlsCa,
    request: x509.CertificateSigningRequest,
    name: str,
    hosts: Sequence[str],
    serial: int,
    validity: tuple[dt.datetime, dt.datetime],
) -> x509.Certificate:
    """Of the request only the public key is taken."""
    return issue_certificate(authority, _public_key(request), name, hosts, serial, validity)


def issue_certificate(
    authority: TlsCa,
    key: PublicKey,
    name: str,
    hosts: Sequence[str],
    serial: int,
    validity: tuple[dt.datetime, dt.datetime],
) -> x509.Certificate:
    """A client's certificate; with hosts, a server's."""
    built = _builder(_name(name), authority.cert.subject, key, serial, *validity)
    use = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
    built = built.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    built = built.add_extension(_usage(signs_certificates=False), critical=True)
    built = built.add_extension(x509.ExtendedKeyUsage([use]), critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    built = built.add_extension(issuer, critical=False)
    if hosts:
        names = x509.SubjectAlternativeName([alternative_name(host) for host in hosts])
        built = built.add_extension(names, critical=False)
    return built.sign(authority.key, hashes.SHA256())


def new_csr(name: str, key: ec.EllipticCurvePrivateKey) -> bytes:
    built = x509.CertificateSigningRequestBuilder().subject_name(_name(name))
    return built.sign(key, hashes.SHA256()).public_bytes(DER)


def read_csr(data: bytes, name: str) -> x509.CertificateSigningRequest:
    """Raises ValueError where it is none, is made out to another name, or its signature is not its own."""
    try:
        request = x509.load_der_x509_csr(data)
        signed = request.is_signature_valid
        _public_key(request)
    except (x509.InvalidVersion, UnsupportedAlgorithm) as error:
        raise ValueError(f"its TLS part cannot be used: {error}") from None
    if not signed:
        raise ValueError("its TLS part is not signed by its own key")
    if (found := common_name(request.subject)) != name:
        raise ValueError(f"its TLS part is made out to {found!r}, not to {name!r}")
    return request


def revocation_list(authority: TlsCa, serials: Iterable[int], made: dt.datetime) -> bytes:
    """PEM. OpenSSL prefers, of two lists that Mosquitto holds, the one with the later date, and refuses everybody
    while that date is still to come: so it is put back by as much as a clock may be behind. It ends with the
    authority, for a list that has ended shuts everybody out; how new it is, the operator who copies it knows."""
    at = max(made - SKEW, authority.cert.not_valid_before_utc)
    built = x509.CertificateRevocationListBuilder().issuer_name(authority.cert.subject)
    built = built.last_update(at).next_update(authority.cert.not_valid_after_utc)
    for serial in sorted(serials):
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(at)
        built = built.add_revoked_certificate(entry.build())
    return built.sign(authority.key, hashes.SHA256()).public_bytes(PEM)


def alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host.encode("idna").decode())


def hosts_of(cert: x509.Certificate) -> list[str]:
    """By which names and addresses a broker's certificate says that it is reached."""
    names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


def common_name(name: x509.Name) -> str:
    found = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if len(found) == 1 else ""


def has_key(cert: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> bool:
    return public_bytes(cert.public_key()) == public_bytes(key.public_key())


def public_bytes(key: CertificatePublicKeyTypes) -> bytes:
    return key.public_bytes(DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def _public_key(request: x509.CertificateSigningRequest) -> ec.EllipticCurvePublicKey:
    key = request.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ValueError("its TLS key is not on the curve P-256")
    return key


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _builder(
    name: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    serial: int,
    since: dt.datetime,
    until: dt.datetime,
) -> x509.CertificateBuilder:
    built = x509.CertificateBuilder().subject_name(name).issuer_name(issuer).public_key(key)
    return built.serial_number(serial).not_valid_before(since).not_valid_after(until)


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates, key_cert_sign=signs_certificates,
        crl_sign=signs_certificates, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
