"""Say where the keys of a run's parties are: in the run's own folder, or in the folder of an enrolled fleet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protofleet.federation.enrol.local_federation import LocalFederation
from protofleet.federation.enrol.register import load_register
from protofleet.protocol.security.enrolment import CURRENT
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.wire.names import COORDINATOR

SHOWN: Final = 3  # Largest number of names in a message.


@dataclass(frozen=True, slots=True)
class Parties:
    """The coordinator and the devices of a run, with the name of their federation."""

    federation: str
    keys: LocalFederation

    @property
    def records(self) -> Path:
        """Return the folder of the public keys of all devices."""
        return self.keys.root / "records"


def parties_of_run(name: str, runs: Path) -> Parties:
    """Return the parties that a run enrols itself, under a root of its own."""
    return Parties(name, LocalFederation(runs / name / "enrolled"))


def parties_of_fleet(folder: Path, devices: Iterable[str]) -> Parties:
    """Return the parties of an enrolled fleet; raise SettingsError if a party of the run is not enrolled there."""
    keys = LocalFederation(folder.expanduser().absolute())
    if not (keys.root / "records").is_dir():
        raise SettingsError(
            f"broker.enrolled is {folder}, which has no root of a fleet; `protofleet enrol fleet {folder} NAMES` "
            "fills this folder"
        )
    missing = [name for name in (COORDINATOR, *devices) if not (keys.folder_of(name) / CURRENT).exists()]
    if missing:
        more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        raise SettingsError(
            f"broker.enrolled is {folder}, where {', '.join(missing[:SHOWN])}{more} of this run are not enrolled; "
            f"`protofleet enrol fleet {folder} NAMES` enrols them"
        )
    return Parties(load_register(keys.root).federation, keys)
