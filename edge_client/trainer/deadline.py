"""The end of a piece of work that goes on for too long, where it is done inside the agent."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from protofleet.edge_client.trainer.errors import TrainerDiedError
from protofleet.protocol.wire.reasons import DisconnectReason

NEVER = float("inf")


class Deadline:
    """The work itself checks it, at each step that it makes: a thread cannot be ended from outside."""

    def __init__(self, seconds: float = NEVER, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock, self._until = seconds, clock, NEVER

    def check(self) -> None:
        if self._clock() > self._until:
            raise TrainerDiedError(
                DisconnectReason.TRAINING_DIED,
                f"no end after {self._seconds:.0f} s, which is limits.work_seconds",
            )

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        self._until = self._clock() + self._seconds
        try:
            yield
        finally:
            self._until = NEVER
