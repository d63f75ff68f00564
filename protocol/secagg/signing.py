"""Sign and verify what the devices of an attempt say to each other through the coordinator."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from protofleet.protocol.secagg.faults import SecaggError, SecaggFault
from protofleet.protocol.secagg.masks import DOMAIN, digest

Statement: TypeAlias = Literal["keys", "masked", "agree"]

SIGNATURE: Final = 64


def sign(identity: Ed25519PrivateKey, statement: Statement, *parts: bytes | str) -> bytes:
    """Return the signature of a device over a statement and its parts."""
    return identity.sign(DOMAIN + digest(f"signed {statement}", *parts))


def verify(key: bytes, name: str, signature: bytes, statement: Statement, *parts: bytes | str) -> None:
    """Raise SecaggError if this is not the signature of the device over the statement and its parts."""
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(
            signature, DOMAIN + digest(f"signed {statement}", *parts)
        )
    except (InvalidSignature, ValueError):
        raise SecaggError(
            SecaggFault.BAD_SIGNATURE,
            f"{name}'s signature of {statement!r} is not valid for this attempt; it has another model, other terms "
            "or another roster",
        ) from None
