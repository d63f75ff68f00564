"""Make X.509 certificates for the broker's TLS: a CA, certificates with a name, and revocation lists.

The keys are on the curve P-256, which every TLS library, hardware key store and Mosquitto build accepts.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

PEM: Final = serialization.Encoding.PEM
DER: Final = serialization.Encoding.DER
SKEW: Final = dt.timedelta(hours=1)  # Largest time that a clock may be behind.
PublicKey: TypeAlias = ec.EllipticCurvePublicKey
MOST_COMMON_NAME: Final = 64  # Largest number of characters of a common name in a certificate (X.520).


@dataclass(frozen=True, slots=True)
class TlsCa:
    cert: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def new_tls_ca(federation: str, number: int, now: dt.datetime, until: dt.datetime) -> TlsCa:
    key = new_key()
    suffix = f" broker CA {number}"
    name = _name(federation[: MOST_COMMON_NAME - len(suffix)] + suffix)
    builder = _builder(name, name, key.public_key(), number, now - SKEW, until)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    builder = builder.add_extension(
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
    )
    return TlsCa(builder.sign(key, hashes.SHA256()), key)


def issue_for_request(
    ca: TlsCa,
    request: x509.CertificateSigningRequest,
    name: str,
    hosts: Sequence[str],
    serial: int,
    validity: tuple[dt.datetime, dt.datetime],
) -> x509.Certificate:
    """Issue a certificate for a request; only the public key of the request is used."""
    return issue_certificate(ca, _public_key(request), name, hosts, serial, validity)


def issue_certificate(
    ca: TlsCa,
    key: PublicKey,
    name: str,
    hosts: Sequence[str],
    serial: int,
    validity: tuple[dt.datetime, dt.datetime],
) -> x509.Certificate:
    """Issue a client's certificate, or a server's certificate if hosts are given."""
    builder = _builder(_name(name), ca.cert.subject, key, serial, *validity)
    use = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([use]), critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.key.public_key())
    builder = builder.add_extension(issuer, critical=False)
    if hosts:
        names = x509.SubjectAlternativeName([alternative_name(host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(ca.key, hashes.SHA256())


def new_csr(name: str, key: ec.EllipticCurvePrivateKey) -> bytes:
    builder = x509.CertificateSigningRequestBuilder().subject_name(_name(name))
    return builder.sign(key, hashes.SHA256()).public_bytes(DER)


def read_csr(data: bytes, name: str) -> x509.CertificateSigningRequest:
    """Read a PKCS#10 request.

    Raise ValueError if the request cannot be read, is for another name, or is not signed by its own key.
    """
    try:
        request = x509.load_der_x509_csr(data)
        key, how = _public_key(request), request.signature_hash_algorithm
        if how is None:
            raise ValueError("the TLS part of the request is not signed by its own key")
        # `request.is_signature_valid` is not used, because it reports an interrupt as a wrong signature.
        key.verify(request.signature, request.tbs_certrequest_bytes, ec.ECDSA(how))
    except (x509.InvalidVersion, UnsupportedAlgorithm) as error:
        raise ValueError(f"the TLS part of the request cannot be used: {error}") from None
    except InvalidSignature:
        raise ValueError("the TLS part of the request is not signed by its own key") from None
    if (found := common_name(request.subject)) != name:
        raise ValueError(f"the TLS part of the request is for {found!r}, not for {name!r}")
    return request


def revocation_list(ca: TlsCa, serials: Iterable[int], issued_at: dt.datetime) -> bytes:
    """Return a revocation list in PEM.

    While the date of a list is in the future on the broker's clock, OpenSSL refuses all clients. The broker's clock
    may be behind, so the date of the list is SKEW before `issued_at`. Mosquitto also refuses all clients after the
    list has expired, so the list expires only with its CA. Old copies of the list do not expire earlier: the operator
    must make sure that a broker has the newest list.
    """
    at = max(issued_at - SKEW, ca.cert.not_valid_before_utc)
    builder = x509.CertificateRevocationListBuilder().issuer_name(ca.cert.subject)
    builder = builder.last_update(at).next_update(ca.cert.not_valid_after_utc)
    for serial in sorted(serials):
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(at)
        builder = builder.add_revoked_certificate(entry.build())
    return builder.sign(ca.key, hashes.SHA256()).public_bytes(PEM)


def alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host.encode("idna").decode())


def host_names(cert: x509.Certificate) -> list[str]:
    """Return the names and addresses in a broker's certificate."""
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
        raise ValueError("the TLS key of the request is not on the curve P-256")
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
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(issuer).public_key(key)
    return builder.serial_number(serial).not_valid_before(since).not_valid_after(until)


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates, key_cert_sign=signs_certificates,
        crl_sign=signs_certificates, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
