"""Sign and read the settings of a party, so that nobody can change them on the way to the party.

The root of the federation signs the settings. The settings do not contain secrets. The version of the
settings only grows, so that old settings are not accepted again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet.protocol.security.statements import (
    Reader,
    StatementError,
    StatementFault,
    Writer,
    sign_statement,
    verified_body,
)
from protofleet.protocol.wire.names import valid_name

SETTINGS: Final = "settings"
TUNING: Final = "tuning"
MAX_SETTINGS: Final = 1 << 16
MAX_TUNING: Final = 1 << 12
ARMOUR: Final = b"-----BEGIN PROTOFLEET SETTINGS-----"


@dataclass(frozen=True, slots=True)
class SignedSettings:
    federation: str
    name: str
    version: int
    text: str  # TOML


def issue_settings(settings: SignedSettings, keys: Sequence[Ed25519PrivateKey]) -> bytes:
    if (size := len(settings.text.encode())) > MAX_SETTINGS:
        raise ValueError(f"the settings have {size} bytes; a device accepts at most {MAX_SETTINGS}")
    fields = (
        Writer().text(settings.federation).text(settings.name).number(settings.version).text(settings.text)
    )
    return sign_statement(SETTINGS, fields.done(), keys)


def read_settings(data: bytes, roots: Sequence[bytes]) -> SignedSettings:
    """Return the settings in a statement that one of these roots has signed."""
    fields = Reader(SETTINGS, verified_body(SETTINGS, data, roots))
    federation, name, version = fields.text(), fields.text(), fields.number()
    text = fields.text(MAX_SETTINGS)
    fields.end()
    try:
        return SignedSettings(valid_name(federation), valid_name(name), version, text)
    except ValueError as error:
        raise StatementError(
            StatementFault.MALFORMED, f"the settings have an impossible name: {error}"
        ) from None


@dataclass(frozen=True, slots=True)
class SignedTuning:
    """A change of settings for a limited time.

    The device accepts such a change only for a short list of settings.
    """

    federation: str
    name: str
    version: int
    until: int  # seconds since 1970; after this time the former settings apply again
    text: str  # TOML


def issue_tuning(settings: SignedTuning, keys: Sequence[Ed25519PrivateKey]) -> bytes:
    fields = (
        Writer().text(settings.federation).text(settings.name).number(settings.version).number(settings.until)
    )
    return sign_statement(TUNING, fields.text(settings.text).done(), keys)


def read_tuning(data: bytes, roots: Sequence[bytes]) -> SignedTuning:
    fields = Reader(TUNING, verified_body(TUNING, data, roots))
    federation, name, version, until = fields.text(), fields.text(), fields.number(), fields.number()
    text = fields.text(MAX_TUNING)
    fields.end()
    return SignedTuning(federation, name, version, until, text)


def is_signed(path: Path) -> bool:
    """Return whether a settings file is a signed statement, and not plain TOML."""
    try:
        with path.open("rb") as file:
            return file.read(256).lstrip().startswith(ARMOUR)
    except OSError:
        return False  # the code that reads the file reports the error
