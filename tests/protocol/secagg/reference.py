"""Secure aggregation in plain Python, written from the layouts alone; it imports nothing of the product.

X25519, Ed25519, AES of one block and ChaCha20-Poly1305 come from the cryptography package. HKDF, counter mode, field
arithmetic, packing and hashes are computed here in another way than in the product.
"""

from __future__ import annotations

import hashlib
import hmac
import struct

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

DOMAIN = b"protofleet/1 secagg\x00"
PRIME = 2**256 + 297


def digest(*parts):
    text = DOMAIN
    for part in parts:
        part = part.encode() if isinstance(part, str) else part
        text += struct.pack("<Q", len(part)) + part
    return hashlib.sha256(text).digest()


def blob(data):
    data = data.encode() if isinstance(data, str) else data
    return struct.pack("<I", len(data)) + data


def terms_bytes(terms):
    """Return the bytes of terms, given as a mapping with the fields of the document."""
    number = lambda name: struct.pack("<Q", terms[name])  # noqa: E731
    return b"".join([
        blob(terms["federation"]), blob(terms["run"]), number("round"), blob(bytes.fromhex(terms["attempt"])),
        blob(terms["stage"]), blob(bytes.fromhex(terms["base"])), number("length"), number("devices"),
        blob(struct.pack("<d", terms["limit"])), number("fraction"), number("bits"), number("least"),
        number("apart"),
    ])  # fmt: skip


def terms_hash(terms):
    return digest("terms", terms_bytes(terms))


def roster_hash(terms, rows):
    """Return the hash of a roster; `rows` are pairs of name, identity key and keys, in the order of names."""
    return digest("roster", terms_hash(terms), *(part for row in sorted(rows) for part in row))


def hkdf(secret, info):
    """Return 32 bytes of HKDF-SHA256 without a salt (RFC 5869)."""
    key = hmac.new(bytes(32), secret, hashlib.sha256).digest()
    return hmac.new(key, info + b"\x01", hashlib.sha256).digest()


def exchanged(private, public):
    return X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))


def public_key(private):
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def stream(key, size):
    """Return the key stream of AES-256-CTR, by the encryption of the counters 0, 1, 2, ..."""
    block = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    found = b"".join(block.update(count.to_bytes(16, "big")) for count in range(-(-size // 16)))
    return found[:size]


def mask(key, length, bits):
    return [word % 2**bits for word in struct.unpack(f"<{length}I", stream(key, 4 * length))]


def pair_mask(private, public, roster, one, other, length, bits):
    key = hkdf(exchanged(private, public), digest("mask", roster, *sorted([one, other])))
    return mask(key, length, bits)


def self_mask(seed, roster, length, bits):
    return mask(hkdf(seed, digest("self mask", roster)), length, bits)


def packed(words, bits):
    whole = sum(word << (bits * place) for place, word in enumerate(words))
    return whole.to_bytes((len(words) * bits + 7) // 8, "little")


def encoded(numbers, fraction, bits):
    return [round(number * 2**fraction) % 2**bits for number in numbers]


def share(secret, coefficients, point):
    """Return the share of a secret at a point; `coefficients` are those of the powers 1, 2, ..."""
    value = int.from_bytes(secret, "little")
    value += sum(factor * point ** (power + 1) for power, factor in enumerate(coefficients))
    return (value % PRIME).to_bytes(33, "little")


def sealed_pair(private, public, roster, sender, recipient, pair):
    key = hkdf(exchanged(private, public), digest("share", roster, sender, recipient))
    return ChaCha20Poly1305(key).encrypt(bytes(12), pair, roster)


def signed_bytes(statement, *parts):
    """Return the bytes that an Ed25519 signature of a statement covers."""
    return DOMAIN + digest(f"signed {statement}", *parts)


def bitmap(places, size):
    return sum(1 << place for place in places).to_bytes((size + 7) // 8, "little")
