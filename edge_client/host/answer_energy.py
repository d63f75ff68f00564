"""Measure the energy for an update: during the work, and during the other time since the last update."""

from __future__ import annotations

from typing import Final

from protofleet.edge_client.host.energy import Drawn, EnergyMeter

TRAIN: Final = "joules.train"  # metric with the energy during the work
SEND: Final = (
    "joules.send"  # metric with the energy outside of the work, for example while sending or waiting
)


class AnswerEnergy:
    """The measurement of the energy for updates, which only the work thread uses.

    The results are empty if the board has no meter, or if the sensor could not be read.
    """

    def __init__(self, meter: EnergyMeter | None) -> None:
        self._meter = meter
        # Reading of the meter after the work on the last update. Before the first update, it is the reading at the
        # time when the device joined the run.
        self._answered: Drawn | None = None
        self._begun: Drawn | None = None

    def join_run(self) -> None:
        self._answered, self._begun = self._read(), None

    def begin_work(self) -> None:
        self._begun = self._read()

    def end_work(self, waited: float) -> dict[str, float]:
        """Return the joules used for the work, and the joules used in the other time since the last update.

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
