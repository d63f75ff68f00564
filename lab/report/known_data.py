"""Read the files in which the devices of a run on this machine describe their data."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from protofleet.lab.report.data_counts import DeviceCounts, FleetCounts
from protofleet.protocol.settings.bounds import Within
from protofleet.protocol.settings.reader import SettingsError, decode

DATA_FILE: Final = "data.json"
Count = Annotated[int, Within(0, 1 << 40)]


@dataclass(frozen=True)
class DataFile:
    """The contents of the file data.json, which a device writes."""

    domain: str
    counts: tuple[Count, ...]
    names: tuple[str, ...] = ()


def known_counts(folder: Path) -> tuple[FleetCounts, int]:
    """Return the known counts of samples, and the number of devices whose counts are not known."""
    found, names, unknown = list[DeviceCounts](), dict[tuple[str, ...], None](), 0
    for place in sorted(path for path in folder.glob("devices/*") if path.is_dir()):
        written = read_data_file(place / DATA_FILE)
        if written is None:
            unknown += 1
            continue
        found.append(DeviceCounts(place.name, written.domain, written.counts))
        names[written.names] = None
    return FleetCounts.of(found, next(iter(names)) if len(names) == 1 else ()), unknown


def read_data_file(path: Path) -> DataFile | None:
    """Read data.json. Return None if the file is damaged or missing. Earlier versions did not write this file."""
    try:
        return decode(DataFile, json.loads(path.read_bytes()))
    except (OSError, ValueError, SettingsError, RecursionError):
        return None
