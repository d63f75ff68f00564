"""The envelope: who says what to whom, signed, so that nothing on the way can change or forge it.

    frame := "PF" | 0x01 | u16 header length | header | payload | Ed25519 signature (64 bytes)

The signature covers all bytes before it. `suite` says how the payload travels: 0 is readable by the
broker; sealed suites take the other numbers, with the same header and the same signature.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Final

import msgpack
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from protocol.reasons import Reason, Rejected

MAJOR: Final = 1
MINOR: Final = 0
MAGIC: Final = b"PF"
ENVELOPE: Final = b"PF\x01"
SIGNATURE: Final = 64
MAX_HEADER: Final = 1024
EVERYBODY: Final = "*"
COORDINATOR: Final = "coordinator"
DOMAIN: Final = b"protofleet/1 envelope\x00"  # a signature made for this is good for nothing else
_TYPES: Final = (int, int, int, str, str, str, int, str, int, int, str, int, str, bytes)


class KeyFileError(ValueError):
    """A key file is missing or is not one."""


@dataclass(frozen=True, slots=True)
class Header:
    major: int
    minor: int
    suite: int
    kind: str
    federation: str
    run: str
    epoch: int  # of the coordinator: its own, or the one a device last heard
    sender: str
    boot: int  # of the sender; grows with every start
    sequence: int  # within the boot, never reused
    recipient: str
    round: int
    phase: str
    base: bytes  # SHA-256 of the broadcast that an update was computed from


@dataclass(frozen=True, slots=True)
class Identity:
    """A party's name, its present boot and its signing key."""

    name: str
    boot: int
    key: Ed25519PrivateKey

    @property
    def public(self) -> bytes:
        return self.key.public_key().public_bytes_raw()


Keyring = Mapping[str, bytes]  # name -> Ed25519 public key


def seal(header: Header, payload: bytes, key: Ed25519PrivateKey) -> bytes:
    packed: bytes = msgpack.packb(astuple(header))
    frame = ENVELOPE + struct.pack("<H", len(packed)) + packed + payload
    return frame + key.sign(DOMAIN + frame)


def unseal(frame: bytes, keyring: Keyring) -> tuple[Header, bytes]:
    """Header and payload of a frame whose signature is good, or Rejected."""
    header, start = read_header(frame)
    key = keyring.get(header.sender)
    if key is None:
        raise Rejected(Reason.UNKNOWN_SENDER, f"there is no key for {header.sender!r}")
    try:
        signed = DOMAIN + frame[:-SIGNATURE]
        Ed25519PublicKey.from_public_bytes(key).verify(frame[-SIGNATURE:], signed)
    except InvalidSignature:
        raise Rejected(Reason.BAD_SIGNATURE, f"{header.kind} in the name of {header.sender}") from None
    if header.suite != 0:
        raise Rejected(Reason.VERSION, f"sealed suite {header.suite}, this side reads suite 0")
    return header, frame[start:-SIGNATURE]


def read_header(frame: bytes) -> tuple[Header, int]:
    if len(frame) < 5 + SIGNATURE or frame[:3] != ENVELOPE:
        raise Rejected(Reason.MALFORMED, f"{len(frame)} bytes are not an envelope")
    (length,) = struct.unpack_from("<H", frame, 3)
    if length > MAX_HEADER or 5 + length + SIGNATURE > len(frame):
        raise Rejected(Reason.MALFORMED, f"a header of {length} bytes in a frame of {len(frame)}")
    try:
        fields = msgpack.unpackb(frame[5 : 5 + length], max_array_len=32, max_map_len=0, max_ext_len=0)
    except (ValueError, msgpack.UnpackException) as error:
        raise Rejected(Reason.MALFORMED, f"the header is not msgpack: {error}") from None
    return _header(fields), 5 + length


def _header(fields: object) -> Header:
    if not isinstance(fields, list) or not fields or type(fields[0]) is not int:
        raise Rejected(Reason.MALFORMED, "the header is not a list that starts with a version")
    if fields[0] != MAJOR:
        raise Rejected(Reason.VERSION, f"protocol {fields[0]}, this side speaks {MAJOR}")
    known = fields[: len(_TYPES)]  # a later minor version may say more
    if len(known) < len(_TYPES) or any(type(v) is not t for v, t in zip(known, _TYPES, strict=True)):
        raise Rejected(Reason.MALFORMED, "the header's fields are not of their types")
    header = Header(*known)
    if min(header.epoch, header.boot, header.sequence, header.round) < 0:
        raise Rejected(Reason.MALFORMED, "a negative number in the header")
    return header


def new_key(path: Path) -> Ed25519PrivateKey:
    """Make a signing key, readable by its owner alone."""
    key = Ed25519PrivateKey.generate()
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.chmod(0o600)  # it may have been there, open to all
    path.write_bytes(text)
    return key


def load_key(path: Path) -> Ed25519PrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except FileNotFoundError:
        raise KeyFileError(f"there is no key file {path}; `protofleet keys` makes one") from None
    except OSError as error:
        raise KeyFileError(f"key file {path} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise KeyFileError(f"{path} is not a private key in PEM form") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyFileError(f"{path} holds a {type(key).__name__}, not an Ed25519 key")
    return key


def save_public(path: Path, public: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(public.hex() + "\n")


def load_public(path: Path) -> bytes:
    try:
        key = bytes.fromhex(path.read_text().strip())
    except FileNotFoundError:
        raise KeyFileError(f"there is no public key {path}; `protofleet keys` makes one") from None
    except OSError as error:
        raise KeyFileError(f"public key {path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise KeyFileError(f"{path} is not 64 hexadecimal digits") from None
    if len(key) != 32:
        raise KeyFileError(f"{path} holds {len(key)} bytes, a public key has 32")
    return key


def load_keyring(folder: Path) -> dict[str, bytes]:
    """Every `<name>.pub` of a folder."""
    ring = {path.stem: load_public(path) for path in sorted(folder.glob("*.pub"))}
    if not ring:
        raise KeyFileError(f"there are no public keys (*.pub) in {folder}; `protofleet keys` makes them")
    return ring
