"""Read the temperature of the board for an update."""

from __future__ import annotations

from typing import Final

from protofleet.edge_client.host.sensors import Sensors

HOTTEST: Final = "celsius.hottest"  # metric with the temperature of the hottest thermal zone
# The temperatures that a coordinator accepts. A zone that is switched off may show any number, so the device leaves
# out the others.
COLDEST_CELSIUS: Final = -273.15
HOTTEST_CELSIUS: Final = 1000.0


def answer_temperature(sensors: Sensors) -> dict[str, float]:
    """Return the temperature of the hottest zone as a metric; empty if no zone can be read."""
    found = [
        celsius for _, celsius in sensors.temperatures() if COLDEST_CELSIUS <= celsius <= HOTTEST_CELSIUS
    ]
    return {HOTTEST: max(found)} if found else {}
