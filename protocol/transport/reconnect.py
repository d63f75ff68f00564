"""Decide how long to wait after the end of a connection before the next try."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

# After a connection that lasted longer than this, the pauses start with the shortest pause again.
STABLE_SECONDS: Final = 10.0
FLAPS: Final = 3


@dataclass(frozen=True, slots=True)
class ConnectionEnd:
    """The end of a connection, with its reason."""

    reason: str
    final: bool = False  # True if the client must not try again
    # True if an accepted connection ended without a DISCONNECT from the broker.
    without_disconnect: bool = False
    taken_over: bool = False  # True if another client has connected with the name of this client

    @property
    def is_cut(self) -> bool:
        """Return whether the reason may be another client with the name of this client."""
        return self.taken_over or self.without_disconnect


def backoff_seconds(tries: int, shortest: float, longest: float, dice: random.Random) -> float:
    """Return a pause that doubles with each try, with jitter.

    The jitter makes devices that fail together reconnect at different times.
    """
    return min(longest, shortest * 2.0 ** min(tries, 30)) * dice.uniform(0.5, 1.0)


class Backoff:
    """The pauses between tries. They are short after a long connection, and grow with each failed try."""

    def __init__(self, shortest: float, longest: float) -> None:
        self._shortest, self._longest = shortest, longest
        self._random = random.Random()
        self._tries = self._flaps = 0

    def ended(self, ending: ConnectionEnd, lasted: float) -> None:
        if lasted > STABLE_SECONDS:
            self._tries = self._flaps = 0
        self._flaps = self._flaps + 1 if ending.without_disconnect else 0

    @property
    def flapping(self) -> bool:
        """Return whether another process probably uses the name of this client.

        If two processes use the same name, the broker closes the older connection. Mosquitto before version 2.1
        does this without a DISCONNECT. So several such ends in a row probably mean that there is another process.
        """
        return self._flaps >= FLAPS

    def pause(self) -> float:
        self._tries += 1
        return backoff_seconds(self._tries - 1, self._shortest, self._longest, self._random)
