"""Refuse public keys of small order: points that anybody can make, which keep no secret and prove nothing.

Sealing to such an X25519 key raises an error, because everybody could open the sealed message. A signature
under such an Ed25519 key is valid for messages that have never been signed. Each curve has five such points,
in several encodings. No honest key is one of them.
"""

from __future__ import annotations

from typing import Final

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

KEY: Final = 32  # bytes
FIELD: Final = 2**255 - 19
# Any private key works, because all of them multiply by the cofactor.
PROBE: Final = X25519PrivateKey.from_private_bytes(bytes(KEY))


def check_keys(sign: bytes, receive: bytes) -> None:
    """Raise ValueError with advice if a key is weak; both keys must have the right length."""
    check_sign(sign)
    if _is_weak(receive):
        raise ValueError(_message("receive", "whatever is sealed to it, everybody can open"))


def check_sign(sign: bytes) -> None:
    # The map of RFC 7748, section 4.1, turns points of small order into points of small order.
    y = int.from_bytes(sign, "little") % 2**255 % FIELD
    u = (1 + y) * pow(1 - y, -1, FIELD) % FIELD if y != 1 else 0
    if _is_weak(u.to_bytes(KEY, "little")):
        raise ValueError(_message("sign", "signatures under it can be made without a private key"))


def _is_weak(receive: bytes) -> bool:
    try:
        PROBE.exchange(X25519PublicKey.from_public_bytes(receive))
    except ValueError:  # sealing makes the same check
        return True
    return False


def _message(use: str, why: str) -> str:
    return f"its key to {use} with is a point of small order ({why}); make new keys on its machine"
