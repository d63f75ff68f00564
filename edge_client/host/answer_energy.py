"""What a device has drawn for an answer: while it worked on it, and in all the time since the answer before."""

from __future__ import annotations

from typing import Final

from protofleet.edge_client.host.energy import Drawn, EnergyMeter

TRAIN: Final = "joules.train"  # names of metrics
SEND: Final = "joules.send"  # sending, waiting, and work that came to nothing


class AnswerEnergy:
    """Used by the thread that works. Without a meter, or with a gap in what it says, nothing is measured."""

    def __init__(self, meter: EnergyMeter | None) -> None:
        self._meter = meter
        self._answered: Drawn | None = None  # or joined the run
        self._begun: Drawn | None = None

    def join_run(self) -> None:
        self._answered, self._begun = self._read(), None

    def begin_work(self) -> None:
        self._begun = self._read()

    def end_work(self, waited: float) -> dict[str, float]:
        """`waited`: the share of the time since `begin_work` in which it waited for its turn on the machine."""
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
