"""Write and read the statements that an offline root signs.

The fields have a fixed order, and the signatures follow. Each statement has exactly one encoding.

    statement := "PFS" | 0x01 | u8 length, kind | u8 n | n x signer (8 bytes)
               | u32 length, body | n x Ed25519 signature (64 bytes)

Each signature covers a domain and all bytes before the signatures. A signer is named by the first 8 bytes of
the SHA-256 of its public key. While a root is being replaced there are two signers.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import struct
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from protofleet.protocol.user_error import MISUSED, UserError

MAGIC: Final = b"PFS\x01"
DOMAIN: Final = b"protofleet/1 statement\x00"
MAX_STATEMENT: Final = 1 << 20
MAX_SIGNERS: Final = 2
SIGNER: Final = 8
SIGNATURE: Final = 64
LINE: Final = 64  # characters in a line of a statement that is written as text


class StatementFault(str, Enum):
    """All reasons for which a statement is refused. Each reason has its own counter."""

    MALFORMED = "malformed"
    UNKNOWN_ROOT = "unknown_root"  # signed by a root that this party does not trust
    BAD_SIGNATURE = "bad_signature"
    WRONG_FEDERATION = "wrong_federation"
    WRONG_NAME = "wrong_name"
    WRONG_ROLE = "wrong_role"
    WRONG_KEYS = "wrong_keys"  # issued for keys that this party does not have
    NOT_YET_VALID = "not_yet_valid"
    EXPIRED = "expired"
    REVOKED = "revoked"
    SUPERSEDED = "superseded"  # a newer statement of the same kind has been seen


class StatementError(UserError, ValueError):
    """The error for a record, request, approval or list that is not accepted. The error contains the reason."""

    exit_code = MISUSED

    def __init__(self, why: StatementFault, detail: str) -> None:
        super().__init__(detail)
        self.why, self.detail = why, detail


def signer(public: bytes) -> bytes:
    return hashlib.sha256(public).digest()[:SIGNER]


def fingerprint(data: bytes) -> str:
    """Return the fingerprint that two people compare: 128 bits as hexadecimal digits in groups of four."""
    digits = hashlib.sha256(data).hexdigest()[:32]
    return " ".join(digits[i : i + 4] for i in range(0, len(digits), 4))


def same_fingerprint(one: str, other: str) -> bool:
    """Return whether two typed fingerprints are the same; case, spaces, colons and hyphens do not matter."""
    return _digits(one) == _digits(other)


def sign_statement(kind: str, body: bytes, keys: Sequence[Ed25519PrivateKey]) -> bytes:
    names = [signer(key.public_key().public_bytes_raw()) for key in keys]
    label = kind.encode()
    head = MAGIC + bytes([len(label)]) + label + bytes([len(names)]) + b"".join(names)
    signed = head + struct.pack("<I", len(body)) + body
    return signed + b"".join(key.sign(DOMAIN + signed) for key in keys)


def verified_body(kind: str, data: bytes, roots: Sequence[bytes]) -> bytes:
    """Return the body of a statement that a known root has signed.

    Raise StatementError if no known root has signed the statement, or if a signature of a known root is wrong.
    """
    signed, names, body, signatures = _parts(kind, data)
    known = {signer(root): root for root in roots}
    verified = False
    for name, signature in zip(names, signatures, strict=True):
        if name in known:
            _verify(kind, known[name], signature, signed)
            verified = True
    if not verified:
        said = " and ".join(name.hex() for name in names)
        held = ", ".join(sorted(name.hex() for name in known)) or "none"
        raise StatementError(
            StatementFault.UNKNOWN_ROOT,
            f"the {kind} is signed by root {said}; this party trusts the roots: {held}",
        )
    return body


def unverified_body(kind: str, data: bytes) -> bytes:
    """Return the body of a statement without a check of its signature.

    This function is for a statement whose body contains the signer's key. Read the key from the body, and
    then call `verified_body`.
    """
    return _parts(kind, data)[2]


def _verify(kind: str, root: bytes, signature: bytes, signed: bytes) -> None:
    try:
        Ed25519PublicKey.from_public_bytes(root).verify(signature, DOMAIN + signed)
    except InvalidSignature:
        words = f"the {kind} was changed after it was signed: the signature is not good"
        raise StatementError(StatementFault.BAD_SIGNATURE, words) from None


def _parts(kind: str, data: bytes) -> tuple[bytes, list[bytes], bytes, list[bytes]]:
    if len(data) > MAX_STATEMENT:
        raise StatementError(
            StatementFault.MALFORMED,
            f"{len(data)} bytes are too many for a {kind}; the limit is {MAX_STATEMENT}",
        )
    label = kind.encode()
    start = MAGIC + bytes([len(label)]) + label
    if not data.startswith(start) or len(data) < len(start) + 1:
        raise StatementError(StatementFault.MALFORMED, f"this is not a {kind}")
    count, at = data[len(start)], len(start) + 1
    if not 1 <= count <= MAX_SIGNERS:
        raise StatementError(
            StatementFault.MALFORMED, f"a {kind} with {count} signers; the number must be 1 or {MAX_SIGNERS}"
        )
    names, at = [data[at + i * SIGNER : at + (i + 1) * SIGNER] for i in range(count)], at + count * SIGNER
    tail = count * SIGNATURE
    if len(data) < at + 4 + tail or len(set(names)) < count:
        raise StatementError(
            StatementFault.MALFORMED, f"a {kind} that is not complete: it has only {len(data)} bytes"
        )
    (length,) = struct.unpack_from("<I", data, at)
    if at + 4 + length + tail != len(data):
        raise StatementError(
            StatementFault.MALFORMED,
            f"a {kind} of {len(data)} bytes, although its fields give another length",
        )
    end = at + 4 + length
    signatures = [data[end + i * SIGNATURE : end + (i + 1) * SIGNATURE] for i in range(count)]
    return data[:end], names, data[at + 4 : end], signatures


class Writer:
    """A writer of the fields of a body, in the order of the calls."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def number(self, value: int) -> Writer:
        self._parts.append(struct.pack("<Q", value))
        return self

    def blob(self, value: bytes) -> Writer:
        self._parts += [struct.pack("<I", len(value)), value]
        return self

    def text(self, value: str) -> Writer:
        return self.blob(value.encode())

    def blobs(self, values: Sequence[bytes]) -> Writer:
        self._parts.append(struct.pack("<I", len(values)))
        for value in values:
            self.blob(value)
        return self

    def done(self) -> bytes:
        return b"".join(self._parts)


class Reader:
    """A reader of the fields that a Writer has written.

    The reader compares each length with its limit before it reads the bytes.
    """

    def __init__(self, kind: str, body: bytes) -> None:
        self._kind, self._body, self._at = kind, body, 0

    def number(self) -> int:
        (value,) = struct.unpack("<Q", self._take(8))
        return int(value)

    def blob(self, most: int, least: int = 0) -> bytes:
        length = self._length()
        if not least <= length <= most:
            raise self.wrong(f"a field of {length} bytes; the field must have {least} to {most} bytes")
        return self._take(length)

    def text(self, most: int = 64) -> str:
        try:
            return self.blob(most).decode()
        except UnicodeDecodeError:
            raise self.wrong("text that is not UTF-8") from None

    def blobs(self, most: int, each: int) -> tuple[bytes, ...]:
        count = self._length()
        if count > most:
            raise self.wrong(f"{count} entries, but the limit is {most}")
        return tuple(self.blob(each) for _ in range(count))

    def end(self) -> None:
        if self._at != len(self._body):
            raise self.wrong(f"{len(self._body) - self._at} bytes after its last field")

    def wrong(self, words: str) -> StatementError:
        return StatementError(StatementFault.MALFORMED, f"a {self._kind} with {words}")

    def _length(self) -> int:
        (value,) = struct.unpack("<I", self._take(4))
        return int(value)

    def _take(self, length: int) -> bytes:
        taken = self._body[self._at : self._at + length]
        if len(taken) < length:
            raise self.wrong("its end missing")
        self._at += length
        return taken


def armoured(kind: str, data: bytes) -> str:
    """Return the statement as text, which mail and chat programs do not damage."""
    text, label = base64.b64encode(data).decode(), f"PROTOFLEET {kind.upper()}"
    lines = [text[i : i + LINE] for i in range(0, len(text), LINE)]
    return "\n".join([f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""])


def read_armoured(kind: str, path: Path) -> bytes:
    """Return the statement in a file; the signature is not checked.

    Raise StatementError with the path if the file does not contain a statement of this kind.
    """
    try:
        with path.open("rb") as file:
            text = file.read(2 * MAX_STATEMENT)
    except FileNotFoundError:
        raise StatementError(StatementFault.MALFORMED, f"there is no file {path}") from None
    except OSError as error:
        raise StatementError(StatementFault.MALFORMED, f"{path} cannot be read: {error.strerror}") from None
    return from_armour(kind, text, str(path))


def from_armour(kind: str, text: bytes, where: str = "this") -> bytes:
    """Return the statement in a text that `armoured` has written; the signature is not checked."""
    label = f"PROTOFLEET {kind.upper()}".encode()
    lines = text.split()
    begin, end = b"-----BEGIN " + label + b"-----", b"-----END " + label + b"-----"
    words = len(begin.split())
    if b" ".join(lines[:words]) != begin or b" ".join(lines[-words:]) != end:
        raise StatementError(
            StatementFault.MALFORMED, f"{where} is no {kind} (it does not start with {begin.decode()})"
        )
    try:
        return base64.b64decode(b"".join(lines[words:-words]), validate=True)
    except (binascii.Error, ValueError):
        raise StatementError(
            StatementFault.MALFORMED, f"{where}: the {kind} was damaged when it was copied"
        ) from None


def _digits(text: str) -> str:
    return "".join(c for c in text.lower() if c not in " :-\n\t")
