"""Files on disk that a whole federation hangs on: written at once or not at all, private ones for one owner."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from pathlib import Path
from typing import Final, TypeAlias

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from protofleet.protocol.storage.disk import Disk

PEM: Final = re.compile(rb"-----BEGIN [A-Z ]+-----.+?-----END [A-Z ]+-----\s*", re.DOTALL)
PRIVATE: Final = 0o600
PRIVATE_FOLDER: Final = 0o700
PUBLIC: Final = 0o644
TOO_OPEN: Final = 0o037  # a group of its own may read a key; nobody else may do anything with it

PrivateKey: TypeAlias = Ed25519PrivateKey | X25519PrivateKey | EllipticCurvePrivateKey


class KeyFileError(ValueError):
    """A key file is missing or is not one."""


def write_file(path: Path, data: bytes, mode: int = PUBLIC, durable: bool = True) -> None:
    """Whoever reads it sees the old file or the new one, after a power cut too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Disk(durable).replace(path, data, mode)


def keep_to_ourselves(folder: Path) -> None:
    """Whatever this process and its children write is for their user alone; and what an earlier version left open."""
    os.umask(0o077)
    with contextlib.suppress(FileNotFoundError, PermissionError):  # not there yet, or another's to close
        folder.chmod(PRIVATE_FOLDER)


def private_pem(key: PrivateKey) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def write_private(path: Path, key: PrivateKey, durable: bool = True) -> None:
    write_file(path, private_pem(key), PRIVATE, durable)


def read_identity(path: Path) -> Ed25519PrivateKey:
    key = _read_private(path)
    if not isinstance(key, Ed25519PrivateKey):
        raise _other(path, key, "an Ed25519 key")
    return key


def read_receive(path: Path) -> X25519PrivateKey:
    key = _read_private(path)
    if not isinstance(key, X25519PrivateKey):
        raise _other(path, key, "an X25519 key")
    return key


def read_tls(path: Path) -> EllipticCurvePrivateKey:
    key = _read_private(path)
    if not isinstance(key, EllipticCurvePrivateKey):
        raise _other(path, key, "a P-256 key")
    return key


def _read_private(path: Path) -> object:
    """The key in a file that only its owner can read, or KeyFileError."""
    if problem := too_open(path):
        raise KeyFileError(problem)
    return private_keys(path, "protofleet enrol")[0]


def private_keys(path: Path, maker: str) -> list[object]:
    """Every key in a file, at least one, or KeyFileError. `maker` is the command that makes such files."""
    try:
        data = path.read_bytes()
        return [serialization.load_pem_private_key(block, None) for block in PEM.findall(data) or [data]]
    except FileNotFoundError:
        raise KeyFileError(f"there is no key file {path}; `{maker}` makes one") from None
    except OSError as error:
        raise KeyFileError(f"key file {path} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise KeyFileError(f"{path} is not a private key in PEM form") from None


def _other(path: Path, key: object, wanted: str) -> KeyFileError:
    return KeyFileError(f"{path} holds a {type(key).__name__}, not {wanted}")


def too_open(path: Path) -> str | None:
    """None, or why a private key may have been seen by others, with the way out."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return None  # whoever opens it says why it cannot be
    if not mode & TOO_OPEN:
        return None
    way_out = f"chmod 600 {path}, and make a new one if they may have read it"
    return f"key file {path} is open to others (mode {mode:04o}); {way_out}"
