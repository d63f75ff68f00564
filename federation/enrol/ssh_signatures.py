"""Write the signatures and the file of allowed signers that `ssh-keygen -Y verify` reads.

With these files, a host can verify files of the root with OpenSSH alone, before any program of ours is installed. The
file PROTOCOL.sshsig of OpenSSH describes the form. The signed bytes begin with SSHSIG. No other bytes that a root
signs begin in this way.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Sequence
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet.protocol.security.trust import Roots

ROOTS_NAMESPACE: Final = "protofleet-roots"
MANIFEST_NAMESPACE: Final = "protofleet-manifest"
LINE: Final = 70  # Characters in a line of an armoured signature.
MAGIC: Final = b"SSHSIG"


def sign(namespace: str, data: bytes, keys: Sequence[Ed25519PrivateKey]) -> str:
    """Return the signatures of all keys, one after the other."""
    return "".join(_signature(namespace, data, key) for key in keys)


def allowed_signers(roots: Roots, statement_digest: str) -> str:
    """Return a file of allowed signers with these roots.

    `statement_digest` is the SHA-256 of the file with the statement of the roots. The file of allowed signers
    contains this digest. So a signature of the file of allowed signers also covers the statement.
    """
    head = f"# roots of {roots.federation}, version {roots.version}, SHA-256 of their statement: {statement_digest}"
    rule = f'{roots.federation} namespaces="{ROOTS_NAMESPACE},{MANIFEST_NAMESPACE}" ssh-ed25519 '
    lines = [rule + base64.b64encode(_public(key)).decode() for key in roots.keys]
    return "\n".join([head, *lines, ""])


def _signature(namespace: str, data: bytes, key: Ed25519PrivateKey) -> str:
    purpose = _string(namespace.encode()) + _string(b"") + _string(b"sha512")
    made = key.sign(MAGIC + purpose + _string(hashlib.sha512(data).digest()))
    signature = _string(_string(b"ssh-ed25519") + _string(made))
    public = _string(_public(key.public_key().public_bytes_raw()))
    text = base64.b64encode(MAGIC + struct.pack(">I", 1) + public + purpose + signature).decode()
    lines = [text[i : i + LINE] for i in range(0, len(text), LINE)]
    return "\n".join(["-----BEGIN SSH SIGNATURE-----", *lines, "-----END SSH SIGNATURE-----", ""])


def _public(key: bytes) -> bytes:
    return _string(b"ssh-ed25519") + _string(key)


def _string(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data
