"""Signatures for seeds that do not test signatures: a keyed hash, thirty times as fast as Ed25519."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
from collections.abc import Iterator
from dataclasses import dataclass
from unittest import mock

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

import protofleet.protocol.security.envelope
from protofleet.protocol.security.keys import Keys

SIZE = 64


@dataclass(frozen=True)
class Quick:
    """Both halves of a key pair: a party that verifies could also sign, which no party here does."""

    secret: bytes

    def sign(self, data: bytes) -> bytes:
        return hashlib.blake2b(data, digest_size=SIZE, key=self.secret).digest()

    def verify(self, signature: bytes, data: bytes) -> None:
        if not hmac.compare_digest(signature, self.sign(data)):
            raise InvalidSignature

    def public_key(self) -> Quick:
        return self

    def public_bytes_raw(self) -> bytes:
        return self.secret


class Either:
    """A stand-in for Ed25519PublicKey."""

    known: dict[bytes, Quick] = {}

    @staticmethod
    def from_public_bytes(raw: bytes) -> Quick | Ed25519PublicKey:
        return Either.known.get(raw) or Ed25519PublicKey.from_public_bytes(raw)


def quick(keys: Keys, name: str) -> Keys:
    pair = Quick(hashlib.sha256(name.encode()).digest())
    Either.known[pair.secret] = pair
    return Keys(pair, keys.receive)  # type: ignore[arg-type]


@contextlib.contextmanager
def both_kinds() -> Iterator[None]:
    with mock.patch.object(protofleet.protocol.security.envelope, "Ed25519PublicKey", Either):
        yield
