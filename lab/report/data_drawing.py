"""Implement `protofleet data FILE --picture`: draw the devices' data, and print how much their classes differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from protofleet.lab.report.data_counts import DeviceCounts, FleetCounts, skew_words
from protofleet.lab.report.data_picture import picture_path, write_picture
from protofleet.protocol.settings.reader import SettingsError
from protofleet.runtime.command.listing import Listing


def draw(tables: Sequence[Mapping[str, Any]], path: Path, listing: Listing) -> dict[str, object]:
    """Draw the devices that the command `data` lists. Rows without numbers of samples are left out."""
    devices = [
        DeviceCounts(one["name"], one["domain"], tuple(one["per_class"]))
        for one in tables
        if "per_class" in one
    ]
    if not devices:
        raise SettingsError(
            "--picture has nothing to draw, because no data of these settings are on this machine"
        )
    fleet = FleetCounts.of(devices, tables[0]["classes"])
    write_picture(fleet, path)
    listing.line(f"skew of classes: {skew_words(fleet)}")
    listing.line(f"picture: {path}")
    return {"skew": fleet.skew if len(fleet.devices) > 1 else None, "picture": str(path)}


__all__ = ["draw", "picture_path"]
