"""Define the two key pairs of a party, and store them on disk.

The party signs with its Ed25519 pair. Other parties seal messages to its X25519 pair.

<name>.key   both private keys in PEM form, readable by their owner alone
<name>.pub   both public keys, a line of 64 hexadecimal digits each: signing, receiving
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeAlias, runtime_checkable

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from protofleet.protocol.security.holders import holder_of, other_keys, serial_of
from protofleet.protocol.security.keyfiles import PRIVATE, KeyFileError, private_keys, private_pem, write_file
from protofleet.protocol.security.weak_keys import check_keys

KEY: Final = 32  # length of a key in bytes


@dataclass(frozen=True, slots=True)
class PublicKeys:
    """The public part of a party's keys."""

    sign: bytes
    receive: bytes

    @property
    def holder(self) -> str:
        return holder_of(0, self.sign)

    @property
    def not_before(self) -> int:
        return 0


class KeyringEntry(Protocol):
    """The properties of a known party that a link needs.

    PublicKeys and the Record of an enrolled party have these properties.
    """

    @property
    def sign(self) -> bytes: ...
    @property
    def receive(self) -> bytes: ...
    @property
    def holder(self) -> str:
        """Return a text that identifies the holder. If the holder's keys change, the count of boots starts again."""
        ...

    @property
    def not_before(self) -> int:
        """Return the Unix time at which the keys became valid, or 0 if this time is not known."""
        ...


Keyring: TypeAlias = Mapping[str, KeyringEntry]  # entries by name


@runtime_checkable
class CachingKeyring(Protocol):
    """A keyring that keeps the entry of a name for a while before it reads the entry again."""

    def changed(self, name: str) -> bool:
        """Read the entry again now, and return whether it differs from the entry in memory."""
        ...


@runtime_checkable
class ExplainingKeyring(Protocol):
    """A keyring that can explain why it does not know a name."""

    def problem(self, name: str) -> str:
        """Read the entry now; return the reason why the name is not known, or "" if the name is known."""
        ...


@runtime_checkable
class RevokingKeyring(Protocol):
    """A keyring that knows the revoked records."""

    def is_revoked(self, serial: int) -> bool: ...


def why_unknown(keyring: Keyring, name: str) -> str:
    """Return the reason why the keyring does not know a name, or "" if it knows the name."""
    if isinstance(keyring, ExplainingKeyring):
        return keyring.problem(name)
    return "" if name in keyring else "there is no key of it any more"


def has_ended(keyring: Keyring, name: str, holder: str) -> bool:
    """Return whether the enrolment of a holder has ended, although its name may be enrolled again.

    A renewal for the same keys does not end an enrolment. An empty holder is not known, so only its name counts.
    """
    entry = keyring.get(name)
    if entry is None or other_keys(holder, entry.holder):
        return True
    return isinstance(keyring, RevokingKeyring) and keyring.is_revoked(serial_of(holder))


def changed(keyring: Keyring, name: str) -> bool:
    """Return whether the entry of this name has changed. If so, a refused message must be checked again."""
    return isinstance(keyring, CachingKeyring) and keyring.changed(name)


@dataclass(frozen=True, slots=True)
class Keys:
    sign: Ed25519PrivateKey
    receive: X25519PrivateKey
    serial: int = 0  # serial of the record for these keys; 0 without a record
    not_before: int = 0

    @property
    def holder(self) -> str:
        return holder_of(self.serial, self.public.sign)

    @staticmethod
    def new() -> Keys:
        return Keys(Ed25519PrivateKey.generate(), X25519PrivateKey.generate())

    @property
    def public(self) -> PublicKeys:
        return PublicKeys(
            self.sign.public_key().public_bytes_raw(), self.receive.public_key().public_bytes_raw()
        )


@dataclass(frozen=True, slots=True)
class Identity:
    """The name of a party, its present boot and its keys."""

    name: str
    boot: int
    keys: Keys


def save_keys(path: Path, keys: Keys) -> None:
    """Write the keys to a file that only its owner can read."""
    write_file(path, private_pem(keys.sign) + private_pem(keys.receive), PRIVATE)


def load_keys(path: Path) -> Keys:
    sign = receive = None
    for key in private_keys(path, "protofleet keys"):
        if isinstance(key, Ed25519PrivateKey):
            sign = key
        elif isinstance(key, X25519PrivateKey):
            receive = key
        else:
            raise KeyFileError(f"{path} holds a {type(key).__name__}, not Ed25519 and X25519 keys")
    if sign is None or receive is None:
        lacks = "an Ed25519 key to sign with" if sign is None else "an X25519 key to receive with"
        raise KeyFileError(
            f"{path} lacks {lacks}; remove the file, then make both keys with `protofleet keys`"
        )
    return Keys(sign, receive)


def save_public(path: Path, public: PublicKeys) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{public.sign.hex()}\n{public.receive.hex()}\n")


def load_public(path: Path) -> PublicKeys:
    try:
        keys = [bytes.fromhex(line) for line in path.read_text().split()]
    except FileNotFoundError:
        raise KeyFileError(f"there is no public key {path}; `protofleet keys` makes one") from None
    except OSError as error:
        raise KeyFileError(f"public key {path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise KeyFileError(f"{path} must contain two lines of 64 hexadecimal digits each") from None
    if [len(key) for key in keys] != [KEY, KEY]:
        sizes = " and ".join(str(len(key)) for key in keys) or "no"
        raise KeyFileError(
            f"{path} contains {sizes} bytes, but must contain two keys of {KEY} bytes: first the key to sign with, "
            "then the key to receive with"
        )
    try:
        check_keys(*keys)
    except ValueError as error:
        raise KeyFileError(f"{path} cannot be used: {error}") from None
    return PublicKeys(*keys)


def load_keyring(folder: Path) -> dict[str, PublicKeys]:
    """Load every `<name>.pub` file of a folder."""
    ring = {path.stem: load_public(path) for path in sorted(folder.glob("*.pub"))}
    if not ring:
        raise KeyFileError(f"there are no public keys (*.pub) in {folder}; `protofleet keys` makes them")
    return ring
