"""Seal the two shares that a device gives to another device, so that the coordinator cannot read them.

Each direction of each pair has its own key, which seals one message. So the nonce of ChaCha20-Poly1305 is 0. A
sealed pair opens only in the attempt of its roster, and only for the two names in their order.
"""

from __future__ import annotations

from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from protofleet.protocol.secagg.faults import SecaggError, SecaggFault
from protofleet.protocol.secagg.shares import SHARE

NONCE: Final = bytes(12)
PAIR: Final = 2 * SHARE  # a share of the masking key, then a share of the seed
SEALED_PAIR: Final = PAIR + 16


def seal_pair(key: bytes, pair: bytes, roster: bytes) -> bytes:
    return ChaCha20Poly1305(key).encrypt(NONCE, pair, roster)


def open_pair(key: bytes, sealed: bytes, roster: bytes) -> bytes:
    """Return the two shares, or raise SecaggError if they were sealed with another key or changed."""
    try:
        return ChaCha20Poly1305(key).decrypt(NONCE, sealed, roster)
    except InvalidTag:
        raise SecaggError(SecaggFault.BAD_SHARES, "a sealed share does not open") from None
