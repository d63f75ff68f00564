"""Refuse public keys of small order, which give no security.

Any party could open a message that is sealed to such an X25519 key, so sealing raises an error. Any party
could make a valid signature for such an Ed25519 key without a private key. Each curve has five points of
small order, in several encodings. A key that is made in the normal way is never one of these points.
"""

from __future__ import annotations

from typing import Final

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

KEY: Final = 32  # length of a key in bytes
FIELD: Final = 2**255 - 19
# Every X25519 private key is a multiple of the cofactor. So an exchange between any private key and a point
# of small order fails.
PROBE: Final = X25519PrivateKey.from_private_bytes(bytes(KEY))


def check_keys(sign: bytes, receive: bytes) -> None:
    """Raise ValueError with advice if a key is weak; both keys must have the right length."""
    check_sign(sign)
    if is_weak(receive):
        raise ValueError(_message("receive", "everybody can open a message that is sealed to it"))


def check_sign(sign: bytes) -> None:
    # Convert the key to a point of the other curve (RFC 7748, section 4.1). The point has a small order
    # exactly if the key has a small order.
    y = int.from_bytes(sign, "little") % 2**255 % FIELD
    u = (1 + y) * pow(1 - y, -1, FIELD) % FIELD if y != 1 else 0
    if is_weak(u.to_bytes(KEY, "little")):
        raise ValueError(_message("sign", "everybody can sign with it without a private key"))


def is_weak(receive: bytes) -> bool:
    """Return whether an X25519 key gives no security."""
    try:
        PROBE.exchange(X25519PublicKey.from_public_bytes(receive))
    except ValueError:  # sealing a message with this key would also raise ValueError
        return True
    return False


def _message(use: str, why: str) -> str:
    return f"its key to {use} with is a point of small order ({why}); make new keys on its machine"
