"""The loading of a device's settings: plain TOML, or TOML that the federation's root has signed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protofleet.edge_client.config import DeviceSettings
from protofleet.edge_client.host.version_file import VersionFile
from protofleet.methods.plugins.paths import seen_from
from protofleet.protocol.security.enrolment import CURRENT, load_trust
from protofleet.protocol.security.signed_settings import SETTINGS, SignedSettings, is_signed, read_settings
from protofleet.protocol.security.statements import StatementError, StatementFault, read_armoured
from protofleet.protocol.settings.reader import SettingsError, decode_file, override, parse_toml, read_toml

VERSION_FILE: Final = "settings.version"  # name of the version file in the state folder


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    settings: DeviceSettings
    version: int = 0  # version of signed settings; 0 if the settings are not signed


def load_settings(path: Path, enrolled: str, changes: Sequence[str]) -> LoadedSettings:
    """Load the settings with `verified_settings`; from now on, earlier versions of signed settings are refused."""
    loaded = verified_settings(path, enrolled, changes)
    if loaded.version:
        refuse_downgrade(Path(loaded.settings.folder), loaded.version, path)
    return loaded


def verified_settings(path: Path, enrolled: str, changes: Sequence[str]) -> LoadedSettings:
    """Load the settings; if they are signed, check the signature with the roots in the folder `enrolled`.

    Raise SettingsError or StatementError, with a way out, if the settings cannot be used.
    """
    signed = signed_settings(path, enrolled)
    if signed is None:
        return LoadedSettings(
            decode_file(DeviceSettings, path, seen_from(read_toml(path), path.parent), changes)
        )
    table = seen_from(parse_toml(signed.text.encode(), str(path)), path.parent)
    settings = decode_file(DeviceSettings, path, override(table, changes) | {"enrolled": enrolled})
    if (settings.federation, settings.name) != (signed.federation, signed.name):
        problem = (
            f"{path} is made out to {signed.name} in {signed.federation}, and its name is {settings.name}"
        )
        raise StatementError(StatementFault.WRONG_NAME, problem)
    return LoadedSettings(settings, signed.version)


def signed_settings(path: Path, enrolled: str) -> SignedSettings | None:
    """Return the signed settings in the file, after a check with the roots in the folder `enrolled`.

    Return None if the file is plain and `enrolled` is empty.
    """
    if not is_signed(path):
        if enrolled:
            raise SettingsError(
                f"{path} is not signed, but --enrolled demands a signature by the root of {enrolled}; sign the "
                "settings, or start without --enrolled if the settings are your own"
            )
        return None
    if not enrolled:
        raise SettingsError(f"{path} is signed; use --enrolled FOLDER with the root that signed it")
    trust = load_trust(Path(enrolled) / CURRENT)
    signed = read_settings(read_armoured(SETTINGS, path), trust.roots.keys)
    if signed.federation != trust.roots.federation:
        problem = (
            f"{path} is for federation {signed.federation}, but {enrolled} is of {trust.roots.federation}"
        )
        raise StatementError(StatementFault.WRONG_FEDERATION, problem)
    return signed


def refuse_downgrade(folder: Path, version: int, path: Path) -> None:
    """Store the version, or raise StatementError if a later version is stored."""
    file = VersionFile(folder / VERSION_FILE)
    highest = file.highest()
    if version < highest:
        problem = (
            f"{path} is version {version}, but version {highest} was used before; sign the settings again"
        )
        raise StatementError(StatementFault.SUPERSEDED, problem)
    if version > highest:
        file.store(version)
