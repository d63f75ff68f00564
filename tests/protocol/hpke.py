"""HPKE in base mode, written directly from RFC 9180, as docs/protocol.md requires of a client in another language.

It uses X25519, HKDF-SHA256 and ChaCha20-Poly1305, for one message, with no associated data unless it is given.
"""

from __future__ import annotations

import hashlib
import hmac

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

KEM = b"KEM" + (32).to_bytes(2, "big")
HPKE = b"HPKE" + (32).to_bytes(2, "big") + (1).to_bytes(2, "big") + (3).to_bytes(2, "big")


def extract(suite, salt, label, ikm):
    return hmac.new(salt or bytes(32), b"HPKE-v1" + suite + label + ikm, hashlib.sha256).digest()


def expand(suite, prk, label, info, length):
    info = length.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info
    return hmac.new(prk, info + b"\x01", hashlib.sha256).digest()[:length]


def shared_secret(dh, enc, public):
    return expand(KEM, extract(KEM, b"", b"eae_prk", dh), b"shared_secret", enc + public, 32)


def schedule(secret, info):
    """Return the key and the nonce of the first message."""
    context = b"\0" + extract(HPKE, b"", b"psk_id_hash", b"") + extract(HPKE, b"", b"info_hash", info)
    prk = extract(HPKE, secret, b"secret", b"")
    return expand(HPKE, prk, b"key", context, 32), expand(HPKE, prk, b"base_nonce", context, 12)


def seal(text, public, info, aad=b"", ephemeral=None):
    ephemeral = ephemeral or X25519PrivateKey.generate()
    enc = ephemeral.public_key().public_bytes_raw()
    dh = ephemeral.exchange(X25519PublicKey.from_public_bytes(public))
    key, nonce = schedule(shared_secret(dh, enc, public), info)
    return enc + ChaCha20Poly1305(key).encrypt(nonce, text, aad)


def unseal(sealed, secret, info, aad=b""):
    enc, public = sealed[:32], secret.public_key().public_bytes_raw()
    dh = secret.exchange(X25519PublicKey.from_public_bytes(enc))
    key, nonce = schedule(shared_secret(dh, enc, public), info)
    return ChaCha20Poly1305(key).decrypt(nonce, sealed[32:], aad)
