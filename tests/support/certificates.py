"""A certificate authority for one test session."""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NOW = dt.datetime.now(dt.timezone.utc)
DAY = dt.timedelta(days=1)


@dataclass(frozen=True)
class Pair:
    cert: str
    key: str


class Authority:
    def __init__(self, folder: Path, name: str = "test CA") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._name = folder, _name(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        public = self._key.public_key()
        mark = x509.SubjectKeyIdentifier.from_public_key(public)
        usage = x509.KeyUsage(
            digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
            key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
            decipher_only=False,
        )  # fmt: skip
        built = self._builder(self._name, public, NOW + DAY)
        built = built.add_extension(x509.BasicConstraints(True, None), True).add_extension(usage, True)
        self.ca = self._write("ca.crt", self._sign(built.add_extension(mark, False)))

    def issue(self, name: str, *hosts: str, until: dt.datetime = NOW + DAY) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        mark = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        built = self._builder(_name(name), key.public_key(), until).add_extension(mark, False)
        if hosts:
            addresses = [x509.IPAddress(ipaddress.ip_address(host)) for host in hosts]
            built = built.add_extension(x509.SubjectAlternativeName(addresses), False)
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return Pair(self._write(f"{name}.crt", self._sign(built)), self._write(f"{name}.key", secret))

    def _builder(self, name, public, until) -> x509.CertificateBuilder:
        built = x509.CertificateBuilder().subject_name(name).issuer_name(self._name).public_key(public)
        built = built.serial_number(x509.random_serial_number())
        return built.not_valid_before(min(NOW, until) - DAY).not_valid_after(until)

    def _sign(self, built: x509.CertificateBuilder) -> bytes:
        return built.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def _write(self, name: str, data: bytes) -> str:
        (self._folder / name).write_bytes(data)
        (self._folder / name).chmod(0o600)
        return str(self._folder / name)


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
