"""The settings a device process is given: plain TOML, or TOML that the federation's root has signed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protofleet.edge_client.config import DeviceSettings
from protofleet.protocol.security.enrolment import CURRENT, load_trust
from protofleet.protocol.security.keyfiles import write_file
from protofleet.protocol.security.signed_settings import SETTINGS, is_signed, read_settings
from protofleet.protocol.security.statements import StatementError, StatementFault, read_armoured
from protofleet.protocol.settings.reader import SettingsError, decode_file, override, parse_toml, read_toml

SEEN: Final = "settings.version"  # in the state folder: the highest version that was taken


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    settings: DeviceSettings
    version: int = 0  # of signed settings; 0: nobody has signed them


def load_settings(path: Path, enrolled: str, changes: Sequence[str]) -> LoadedSettings:
    """What `verified` says, put to use: from now on nothing earlier is taken."""
    given = verified_settings(path, enrolled, changes)
    if given.version:
        refuse_downgrade(Path(given.settings.folder), given.version, path)
    return given


def verified_settings(path: Path, enrolled: str, changes: Sequence[str]) -> LoadedSettings:
    """`enrolled` is the folder whose roots are believed, and nobody else. SettingsError or StatementError with the
    way out."""
    if not is_signed(path):
        if enrolled:
            words = f"{path} is not signed, and with --enrolled only settings are taken that the root of {enrolled}"
            raise SettingsError(
                f"{words} has signed; sign them, or start without --enrolled if they are your own"
            )
        return LoadedSettings(decode_file(DeviceSettings, path, read_toml(path), changes))
    if not enrolled:
        raise SettingsError(f"{path} is signed; say --enrolled FOLDER, whose root has to have signed it")
    trust = load_trust(Path(enrolled) / CURRENT)
    told = read_settings(read_armoured(SETTINGS, path), trust.roots.keys)
    if told.federation != trust.roots.federation:
        words = f"{path} is for federation {told.federation}, {enrolled} is of {trust.roots.federation}"
        raise StatementError(StatementFault.WRONG_FEDERATION, words)
    table = parse_toml(told.text.encode(), str(path))
    settings = decode_file(DeviceSettings, path, override(table, changes) | {"enrolled": enrolled})
    if (settings.federation, settings.name) != (told.federation, told.name):
        words = f"{path} is made out to {told.name} in {told.federation}, it speaks of {settings.name}"
        raise StatementError(StatementFault.WRONG_NAME, words)
    return LoadedSettings(settings, told.version)


def refuse_downgrade(folder: Path, version: int, path: Path) -> None:
    """Take a version down, and never an earlier one from then on."""
    place = folder / SEEN
    seen = int(text) if place.exists() and (text := place.read_text().strip()).isdigit() else 0
    if version < seen:
        words = f"{path} is version {version}, but version {seen} has been in use; sign it again"
        raise StatementError(StatementFault.SUPERSEDED, words)
    if version > seen:
        write_file(place, f"{version}\n".encode())
