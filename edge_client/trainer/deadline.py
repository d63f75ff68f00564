"""The end of a piece of work that goes on for too long, where it is done inside the agent."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from protofleet.edge_client.trainer.errors import TrainerDiedError
from protofleet.protocol.wire.reasons import DisconnectReason

NEVER = float("inf")


class Deadline:
    """One for all that a process works on, one after the other.

    The work itself checks it, at each step that it makes: a thread cannot be ended from outside.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._seconds, self._until = clock, NEVER, NEVER

    def check(self) -> None:
        if self._clock() > self._until:
            raise TrainerDiedError(
                DisconnectReason.TRAINING_DIED,
                f"no end after {self._seconds:g} s, which is limits.work_seconds",
            )

    @contextlib.contextmanager
    def running(self, seconds: float = NEVER) -> Iterator[None]:
        self._seconds, self._until = seconds, self._clock() + seconds
        try:
            yield
        finally:
            self._until = NEVER
