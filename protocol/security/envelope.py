"""Sign and check the envelope of a message, so that no other party can change or forge the message.

The envelope names the sender, the kind of message and the recipient.

    frame := "PF" | 0x01 | u16 header length | header | payload | Ed25519 signature (64 bytes)

The signature covers all bytes before it. `suite` is the encryption of the payload. With suite 0, any party
that gets the frame can read the payload. With suite 1, the payload is sealed to the recipient's key with HPKE
(RFC 9180: X25519, HKDF-SHA256, ChaCha20-Poly1305, base mode) and bound to the header, which names the sender.
So a party cannot send the sealed payload of another party under its own name.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields
from typing import Final

import msgpack
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from protofleet.protocol.security.keys import Keyring, KeyringEntry
from protofleet.protocol.wire.reasons import Reason, Rejected

MAJOR: Final = 1
MINOR: Final = 0
MAGIC: Final = b"PF"
ENVELOPE: Final = b"PF\x01"
SIGNATURE: Final = 64
MAX_HEADER: Final = 1024
# The largest signed integer of 64 bits, which most languages and databases can store.
MAX_NUMBER: Final = (1 << 63) - 1
# The signed bytes begin with this domain, so the signature is not valid for any other kind of data.
DOMAIN: Final = b"protofleet/1 envelope\x00"
SEALING: Final = b"protofleet/1 sealed\x00"
OPEN: Final = 0
SEALED: Final = 1
SECURITY: Final = ("sealed", "off")  # the values of the setting `security`
HPKE: Final = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
FIELD_TYPES: Final = (int, int, int, str, str, str, int, str, int, int, str, int, str, bytes)


def seals(security: str) -> bool:
    """Return whether links seal messages if the setting `security` has this value.

    Raise ValueError for an unknown value.
    """
    if security not in SECURITY:
        raise ValueError(f"security is {security!r}, it must be one of {', '.join(SECURITY)}")
    return security == "sealed"


@dataclass(frozen=True, slots=True)
class Header:
    major: int
    minor: int
    suite: int
    kind: str
    federation: str
    run: str
    epoch: int  # a coordinator sends its own epoch; a device sends the last epoch that it has received
    sender: str
    boot: int  # number of the sender's boot; it grows with every start
    sequence: int  # number of the message within the boot; no number is used twice
    recipient: str
    round: int
    phase: str
    base: bytes  # SHA-256 of the broadcast that an update was computed from


_FIELDS: Final = tuple(field.name for field in fields(Header))


def seal(header: Header, payload: bytes, key: Ed25519PrivateKey, receive: bytes = b"") -> bytes:
    """Return the signed frame of a payload.

    If the header's suite is SEALED, the payload is sealed to `receive`, the key of the recipient.
    """
    # This is faster than `astuple`, whose deep copy takes 80 us.
    packed: bytes = msgpack.packb([getattr(header, name) for name in _FIELDS])
    head = ENVELOPE + struct.pack("<H", len(packed)) + packed
    if header.suite == SEALED:
        payload = HPKE.encrypt(payload, X25519PublicKey.from_public_bytes(receive), info=SEALING + head)
    frame = head + payload
    return frame + key.sign(DOMAIN + frame)


def unseal(frame: bytes, keyring: Keyring, secret: X25519PrivateKey | None = None) -> tuple[Header, bytes]:
    """Return the header and the payload of a frame.

    Raise Rejected if the signature is not valid, or if the frame is sealed to another party.
    """
    header, start, _ = verified(frame, keyring)
    return header, contents(frame, header, start, secret)


def verified(frame: bytes, keyring: Keyring) -> tuple[Header, int, KeyringEntry]:
    """Check a frame's signature; return its header, the start of its payload, and its sender's keys.

    Raise Rejected if the sender's keys are not known or the signature is not valid.
    """
    header, start = read_header(frame)
    public = keyring.get(header.sender)
    if public is None:
        raise Rejected(Reason.UNKNOWN_SENDER, f"there is no key for {header.sender!r}")
    try:
        signed = DOMAIN + frame[:-SIGNATURE]
        Ed25519PublicKey.from_public_bytes(public.sign).verify(frame[-SIGNATURE:], signed)
    except InvalidSignature:
        raise Rejected(
            Reason.BAD_SIGNATURE, f"{header.kind} has no valid signature of {header.sender}"
        ) from None
    return header, start, public


def contents(frame: bytes, header: Header, start: int, secret: X25519PrivateKey | None) -> bytes:
    """Return the payload of a verified frame."""
    if header.suite == OPEN:
        return frame[start:-SIGNATURE]
    if header.suite != SEALED:
        raise Rejected(
            Reason.VERSION,
            f"suite {header.suite} is not known; this party knows the suites {OPEN} and {SEALED}",
        )
    if secret is None:
        raise Rejected(
            Reason.NOT_FOR_US,
            f"{header.kind} of {header.sender} is sealed, and this party has no key to open the seal",
        )
    try:
        return HPKE.decrypt(frame[start:-SIGNATURE], secret, info=SEALING + frame[:start])
    except (InvalidTag, ValueError):
        raise Rejected(
            Reason.NOT_FOR_US, f"{header.kind} of {header.sender} was sealed to another key"
        ) from None


def read_header(frame: bytes) -> tuple[Header, int]:
    if len(frame) < 5 + SIGNATURE or frame[:3] != ENVELOPE:
        raise Rejected(Reason.MALFORMED, f"{len(frame)} bytes are not an envelope")
    (length,) = struct.unpack_from("<H", frame, 3)
    if length > MAX_HEADER or 5 + length + SIGNATURE > len(frame):
        raise Rejected(
            Reason.MALFORMED,
            f"the header has {length} bytes, which is too many for a frame of {len(frame)} bytes",
        )
    try:
        fields = msgpack.unpackb(frame[5 : 5 + length], max_array_len=32, max_map_len=0, max_ext_len=0)
    except (ValueError, msgpack.UnpackException) as error:
        raise Rejected(Reason.MALFORMED, f"the header is not msgpack: {error}") from None
    return _header(fields), 5 + length


def _header(fields: object) -> Header:
    if not isinstance(fields, list) or not fields or type(fields[0]) is not int:
        raise Rejected(Reason.MALFORMED, "the header is not a list that starts with a version")
    if fields[0] != MAJOR:
        raise Rejected(Reason.VERSION, f"protocol {fields[0]} is not known; this party uses protocol {MAJOR}")
    known = fields[: len(FIELD_TYPES)]  # a later minor version may add fields
    if len(known) < len(FIELD_TYPES) or any(
        type(v) is not t for v, t in zip(known, FIELD_TYPES, strict=True)
    ):
        raise Rejected(Reason.MALFORMED, "a field of the header is missing or has a wrong type")
    header = Header(*known)
    numbers = (header.epoch, header.boot, header.sequence, header.round)
    if min(numbers) < 0 or max(numbers) > MAX_NUMBER:
        raise Rejected(Reason.MALFORMED, f"a number in the header is not in the range from 0 to {MAX_NUMBER}")
    return header
