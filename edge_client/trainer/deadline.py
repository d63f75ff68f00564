"""The end of a piece of work that goes on for too long, where it is done inside the agent."""

from __future__ import annotations

import time
from collections.abc import Callable

from protofleet.edge_client.evaluate import Splits
from protofleet.edge_client.trainer.process import TrainerDiedError
from protofleet.edge_client.trainer.work import Work
from protofleet.methods.contract.base import Ask, ClientHalf, Payload
from protofleet.protocol.wire.reasons import Farewell

NEVER = float("inf")


class Deadline:
    """The work itself looks at it, at each step that it makes: a thread cannot be ended from outside."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock, self._until = seconds, clock, NEVER

    def look(self) -> None:
        if self._clock() > self._until:
            raise TrainerDiedError(
                Farewell.TRAINING_DIED, f"no end after {self._seconds:.0f} s, which is limits.work_seconds"
            )

    def around(self, work: Work) -> Work:
        def bounded(
            half: ClientHalf, data: Splits, ask: Ask, number: int, reports: str
        ) -> tuple[Payload, dict[str, float]]:
            self._until = self._clock() + self._seconds
            try:
                return work(half, data, ask, number, reports)
            finally:
                self._until = NEVER

        return bounded
