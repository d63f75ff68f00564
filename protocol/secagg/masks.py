"""Derive keys that two devices share, and masks from keys.

A mask is the key stream of AES-256-CTR, with the counter 0, under a key that is used for this mask only. Keys come
from X25519 and HKDF-SHA256. They depend on the roster, so on the terms of the attempt: federation, run, round,
nonce, stage, model, length and field.
"""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from protofleet.protocol.secagg.faults import SecaggError, SecaggFault
from protofleet.protocol.secagg.field import Field, Words, lowest_bits

KEY: Final = 32  # bytes of a key, of a seed and of a hash
DOMAIN: Final = b"protofleet/1 secagg\x00"


def digest(*parts: bytes | str) -> bytes:
    """Return the SHA-256 of the parts, each preceded by its length in 8 bytes, so that no two lists have one hash."""
    found = hashlib.sha256(DOMAIN)
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        found.update(len(raw).to_bytes(8, "little"))
        found.update(raw)
    return found.digest()


def public_key(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def shared_key(private: bytes, peer: bytes, purpose: str, roster: bytes, *names: str) -> bytes:
    """Return the key of two devices for one purpose in the attempt of this roster hash.

    Raise SecaggError if the public key of the peer is weak.
    """
    try:
        secret = X25519PrivateKey.from_private_bytes(private).exchange(
            X25519PublicKey.from_public_bytes(peer)
        )
    except ValueError:
        raise SecaggError(
            SecaggFault.BAD_KEYS, "a public key is a point of small order, or is no key"
        ) from None
    return HKDF(SHA256(), KEY, salt=None, info=digest(purpose, roster, *names)).derive(secret)


def mask(key: bytes, length: int, bits: int) -> Words:
    """Return `length` words, uniform over all 2^bits values. The key must be used for this mask only."""
    stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor().update(bytes(4 * length))
    return lowest_bits(np.frombuffer(stream, "<u4").astype(np.uint32, copy=False), bits)


def self_mask(seed: bytes, roster: bytes, length: int, bits: int) -> Words:
    """Return the mask that a device adds for itself; it is removed when the seed is known."""
    return mask(HKDF(SHA256(), KEY, salt=None, info=digest("self mask", roster)).derive(seed), length, bits)


def pair_key(private: bytes, peer: bytes, roster: bytes, one: str, other: str) -> bytes:
    """Return the key of the mask of two devices; both devices derive the same key."""
    return shared_key(private, peer, "mask", roster, *sorted((one, other)))


def add_pair_mask(field: Field, words: Words, key: bytes, adds: bool) -> Words:
    """Return the words plus the mask of a pair, or minus the mask.

    The device whose name is first in the order of names adds the mask, and the other device subtracts it.
    """
    change = mask(key, len(words), field.bits)
    return field.add(words, change) if adds else field.subtract(words, change)
