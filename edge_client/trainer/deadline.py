"""The time limit for a piece of work inside the agent's process."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from protofleet.edge_client.trainer.errors import TrainerDiedError
from protofleet.protocol.wire.reasons import DisconnectReason

NEVER = float("inf")


class Deadline:
    """The time limit for the work of a process. The process does one piece of work at a time.

    The work itself calls `check` at each step, because no other thread can end the work's thread.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._seconds, self._until = clock, NEVER, NEVER

    def check(self) -> None:
        if self._clock() > self._until:
            raise TrainerDiedError(
                DisconnectReason.TRAINING_DIED,
                f"the work did not end within {self._seconds:g} s, which is limits.work_seconds",
            )

    @contextlib.contextmanager
    def running(self, seconds: float = NEVER) -> Iterator[None]:
        self._seconds, self._until = seconds, self._clock() + seconds
        try:
            yield
        finally:
            self._until = NEVER
