"""A round's bytes, divided by the devices that they went to or came from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from protofleet.coordinator.observe.record import ByKind
from protofleet.protocol.link.meter import DOWN, UP

MOST_DEVICES: Final = (
    64  # named of a round; the others share one name, so that a large fleet's lines stay short
)
OTHER: Final = "other"
ALL: Final = "all devices"  # no device can be called so; a broadcast is published once for all

Crossed = Mapping[tuple[str, str, str], int]  # (device, direction, kind) -> bytes


def divided(crossed: Crossed, wire: ByKind, most: int = MOST_DEVICES) -> dict[str, ByKind]:
    """Divide `wire` by device: `most` devices with the most bytes, then ALL, then OTHER with what is left.

    So the rows always sum up to `wire`, whatever an earlier process has counted of it.
    """
    totals: Counter[str] = Counter()
    for (device, _, _), size in crossed.items():
        totals[device] += size
    del totals[""]
    named = sorted((name for name in totals if totals[name]), key=lambda name: (-totals[name], name))[:most]
    found: dict[str, ByKind] = {name: {UP: {}, DOWN: {}} for name in (*named, ALL, OTHER)}
    left = {(way, kind): size for way, kinds in wire.items() for kind, size in kinds.items()}
    for (device, way, kind), size in sorted(crossed.items()):
        name = ALL if (device, way) == ("", DOWN) else device
        if size and name in found:
            found[name][way][kind] = found[name][way].get(kind, 0) + size
            left[way, kind] -= size
    for (way, kind), size in left.items():
        if size:
            found[OTHER][way][kind] = found[OTHER][way].get(kind, 0) + size
    return {name: ways for name, ways in found.items() if any(ways.values())}


def rows_of(by_device: Mapping[str, ByKind], wire: ByKind) -> Mapping[str, ByKind]:
    """Return a record's rows by device; all bytes as those of OTHER where an earlier version divided nothing."""
    return by_device or {OTHER: wire}
