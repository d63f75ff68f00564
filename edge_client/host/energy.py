"""The energy of a board in joules, from readings of its power sensor at a fixed rate."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protofleet.edge_client.host.power import UNREADABLE, PowerSensor, power_sensor

SAMPLE_SECONDS: Final = 0.5  # seconds between two readings

log = logging.getLogger("protofleet.device")


@dataclass(frozen=True)
class Drawn:
    """The energy that a board had used when its sensor was read.

    The energy between two readings is known only if no reading between them failed. Then both readings have the
    same `gaps`.
    """

    joules: float
    gaps: int  # number of failed readings up to now

    def since(self, earlier: Drawn) -> float | None:
        return self.joules - earlier.joules if self.gaps == earlier.gaps else None


class EnergyMeter:
    """The energy meter of a board, or of one device's part of the board; any thread may read it."""

    def __init__(
        self, sensor: PowerSensor, shared_by: int = 1, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._sensor, self._shared_by, self._clock = sensor, shared_by, clock
        self._lock = threading.Lock()
        self._joules, self._gaps, self._lost = 0.0, 0, False

    def start(self) -> EnergyMeter:
        threading.Thread(target=self._sample_for_ever, name="energy", daemon=True).start()
        return self

    def read(self) -> Drawn:
        """Read the sensor now, and return the energy up to now."""
        with self._lock:
            try:
                self._joules += self._sensor.drawn(self._clock()) / self._shared_by
                # After a failed reading, the energy since the last successful reading is unknown too.
                self._gaps += self._lost
                self._lost = False
            except UNREADABLE as error:
                if not self._gaps:
                    log.warning(
                        "%s: %s; the energy since the last successful reading is unknown",
                        self._sensor.name,
                        error,
                    )
                self._gaps, self._lost = self._gaps + 1, True
                self._sensor.forget()
            return Drawn(self._joules, self._gaps)

    def _sample_for_ever(self) -> None:
        while True:
            self.read()
            time.sleep(SAMPLE_SECONDS)


def meter_of_board(root: str, shared_by: int) -> EnergyMeter | None:
    """Start a meter, which runs until the process ends, and return it.

    Return None if the board has no power sensor that can be read.
    """
    sensor = power_sensor(Path(root))
    if sensor is None:
        log.info("no power sensor can be read: energy is not measured")
        return None
    part = f", of which this device has a part in {shared_by}" if shared_by > 1 else ""
    log.info("energy is measured by %s%s", sensor.name, part)
    return EnergyMeter(sensor, shared_by).start()
