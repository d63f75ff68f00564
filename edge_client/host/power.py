"""The power that a board takes from its supply, measured by the sensor that covers the largest part of the board.

There are three kinds of sensors. If a board has several kinds, the device uses only the kind that comes first in this
list. With several kinds, some power would be counted twice.

1. The rail that supplies the whole board (a Jetson's VDD_IN, or POM_5V_IN).
2. The sum of all rails that the board's INA chips measure. On such a board, for example an AGX, no rail supplies
   another rail.
3. The energy counters of the processor (RAPL of Intel and AMD), for its packages and for memory that is not part of
   a package. The power of the other parts of the machine is not measured.

A counter that only root may read is not used. If a board has no usable sensor, the device logs this and reports no
energy.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from protofleet.edge_client.host.sensors import Sensors

TOTAL_RAILS: Final = ("VDD_IN", "POM_5V_IN")
INA: Final = "ina"  # start of the kernel's names for INA chips, which measure power
# intel-rapl:0 is a package, and intel-rapl:0:1 is a part of this package. intel-rapl-mmio:0 is the same package
# again, and a laptop's psys contains packages, so these two are not counted.
PACKAGE: Final = re.compile(r"intel-rapl:\d+")
# The largest power in watts that is accepted. If the energy counter shows more, the board has set the counter back,
# for example because it was suspended.
MOST_WATTS: Final = 10_000.0
UNREADABLE: Final = (OSError, ValueError)


class PowerSensor(Protocol):
    @property
    def name(self) -> str: ...

    def drawn(self, now: float) -> float:
        """Return the joules since the last call, or 0 at the first call.

        Raise OSError or ValueError if the sensor cannot be read.
        """
        ...

    def forget(self) -> None:
        """Treat the next call of `drawn` as the first call."""
        ...


@dataclass
class Rails:
    """Rails whose power is read in watts.

    The energy between two readings is the mean of the two powers times the seconds (the trapezoidal rule).
    """

    sensors: Sensors
    rails: Sequence[str]
    _last: tuple[float, float] | None = None  # time of the last reading, and its watts

    @property
    def name(self) -> str:
        return " + ".join(self.rails)

    def drawn(self, now: float) -> float:
        found = dict(self.sensors.rails())
        if missing := [rail for rail in self.rails if rail not in found]:
            raise ValueError(f"{missing[0]} cannot be read")
        # A sensor may report a few milliwatts below 0. Such a power is replaced by 0.
        watts = max(0.0, sum(found[rail] for rail in self.rails))
        at, before = self._last or (now, watts)
        self._last = now, watts
        return (before + watts) / 2 * max(0.0, now - at)

    def forget(self) -> None:
        self._last = None


@dataclass
class Counters:
    """The RAPL counters of a processor, which count microjoules.

    A counter starts again at 0 after its largest value.
    """

    zones: Sequence[Path]
    _last: dict[Path, int] = field(default_factory=dict)
    _at: float = 0.0

    @property
    def name(self) -> str:
        return " + ".join(f"{zone.name}:{(zone / 'name').read_text().strip()}" for zone in self.zones)

    def drawn(self, now: float) -> float:
        microjoules, read = 0, {zone: counter(zone) for zone in self.zones}
        for zone, value in read.items():
            grown = value - self._last.get(zone, value)
            microjoules += (
                grown if grown >= 0 else grown + int((zone / "max_energy_range_uj").read_text()) + 1
            )
        at, self._last, self._at = self._at, read, now
        if microjoules > MOST_WATTS * 1e6 * max(now - at, 1.0):
            raise ValueError("its counter was set back")
        return microjoules / 1e6

    def forget(self) -> None:
        self._last = {}


def power_sensor(root: Path) -> PowerSensor | None:
    """Return the best power sensor of this board that can be read, or None."""
    sensors = Sensors(root)
    if rails := board_rails(root, sensors):
        return Rails(sensors, rails)
    zones = [zone for zone in rapl_zones(root) if is_readable(zone)]
    return Counters(zones) if zones else None


def board_rails(root: Path, sensors: Sensors) -> list[str]:
    found = [name for name, _ in sensors.rails()]
    totals = [name for name in found if name.partition(":")[2] in TOTAL_RAILS]
    return totals[:1] or [name for name in found if is_ina(root / "sys/class/hwmon" / name.partition(":")[0])]


def is_ina(chip: Path) -> bool:
    """Return whether the chip is an INA chip, which measures rails of the board.

    Other chips, for example in a graphics card or a power supply, measure only a part of the board.
    """
    with contextlib.suppress(OSError):
        return (chip / "name").read_text().startswith(INA)
    return False


def rapl_zones(root: Path) -> list[Path]:
    found = []
    for zone in sorted((root / "sys/class/powercap").glob("intel-rapl:*")):
        with contextlib.suppress(OSError):
            called = (zone / "name").read_text().strip()
            is_package = bool(PACKAGE.fullmatch(zone.name)) and called != "psys"
            if is_package or called == "dram":
                found.append(zone)
    return found


def is_readable(zone: Path) -> bool:
    with contextlib.suppress(*UNREADABLE):
        return counter(zone) >= 0
    return False


def counter(zone: Path) -> int:
    return int((zone / "energy_uj").read_text())
