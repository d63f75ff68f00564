"""Read and write key files.

A file is written completely or not at all. Only its owner can read a private file.
"""

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
from protofleet.protocol.user_error import MISUSED, UserError

PEM: Final = re.compile(rb"-----BEGIN [A-Z ]+-----.+?-----END [A-Z ]+-----\s*", re.DOTALL)
PRIVATE: Final = 0o600
PRIVATE_FOLDER: Final = 0o700
PUBLIC: Final = 0o644
TOO_OPEN: Final = 0o037  # permissions that a key file must not have; the file's group may read it

PrivateKey: TypeAlias = Ed25519PrivateKey | X25519PrivateKey | EllipticCurvePrivateKey


class KeyFileError(UserError, ValueError):
    """The error for a key file that is missing or cannot be used."""

    exit_code = MISUSED


def write_file(path: Path, data: bytes, mode: int = PUBLIC, durable: bool = True) -> None:
    """Replace a file so that a reader sees the old or the new content, also after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Disk(durable).replace(path, data, mode)


def keep_to_ourselves(folder: Path) -> None:
    """Give only this user access to `folder` and to new files of this process and its children.

    An earlier version may have made the folder with access for others.
    """
    os.umask(0o077)
    # The folder may not exist yet, or may belong to another user.
    with contextlib.suppress(FileNotFoundError, PermissionError):
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
    """Return the key in a private file.

    Raise KeyFileError if other users can read the file, or if the file does not contain a key.
    """
    if problem := too_open(path):
        raise KeyFileError(problem)
    return private_keys(path, "protofleet enrol")[0]


def private_keys(path: Path, maker: str) -> list[object]:
    """Return all keys in a file.

    Raise KeyFileError if the file does not contain a key. The error names `maker`, the command that makes such files.
    """
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
    """Return a message with advice if other users can read a private key, otherwise None."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return None  # the code that opens the file reports the error
    if not mode & TOO_OPEN:
        return None
    way_out = f"chmod 600 {path}, and make a new key if other users may have read this key"
    return f"key file {path} is open to others (mode {mode:04o}); {way_out}"
