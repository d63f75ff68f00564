"""The energy of a device for an update: during its work, and in the other time since the last update."""

from __future__ import annotations

from typing import Final

from protofleet.edge_client.host.energy import Drawn, EnergyMeter

TRAIN: Final = "joules.train"  # name of a metric: energy of the work
SEND: Final = "joules.send"  # name of a metric: energy of all other time, such as sending and waiting


class AnswerEnergy:
    """The measurement of the energy for updates, which only the work thread uses.

    There is no result without a meter, or if a reading of the sensor has failed.
    """

    def __init__(self, meter: EnergyMeter | None) -> None:
        self._meter = meter
        self._answered: Drawn | None = None  # reading at the last update, or when the device joined the run
        self._begun: Drawn | None = None

    def join_run(self) -> None:
        self._answered, self._begun = self._read(), None

    def begin_work(self) -> None:
        self._begun = self._read()

    def end_work(self, waited: float) -> dict[str, float]:
        """Return the joules of the work and of the other time since the last update.

        `waited` is the fraction of the time since `begin_work` in which the device waited for its turn.
        """
        before, begun, now = self._answered, self._begun, self._read()
        self._answered = now
        if before is None or begun is None or now is None:
            return {}
        idle, work = begun.since(before), now.since(begun)
        if idle is None or work is None:
            return {}
        return {TRAIN: work * (1 - waited), SEND: idle + work * waited}

    def _read(self) -> Drawn | None:
        return self._meter.read() if self._meter is not None else None
