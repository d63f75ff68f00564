"""Why a connection ended, and how long to wait before the next try."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

STABLE_SECONDS: Final = 10.0  # a connection that lasted this long starts the back-off afresh
FLAPS: Final = 3


@dataclass(frozen=True, slots=True)
class ConnectionEnd:
    """Why a connection ended."""

    reason: str
    final: bool = False  # trying again would be wrong
    without_disconnect: bool = False  # it was up, and no DISCONNECT came


def backoff_seconds(tries: int, shortest: float, longest: float, dice: random.Random) -> float:
    """Twice as long each time, and with jitter: devices that fail together must not reconnect together."""
    return min(longest, shortest * 2.0 ** min(tries, 30)) * dice.uniform(0.5, 1.0)


class Backoff:
    """Short pauses after a long connection, longer ones while tries fail."""

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
        """Whether another process may use this name: brokers before Mosquitto 2.1 close the older
        connection without a DISCONNECT."""
        return self._flaps >= FLAPS

    def pause(self) -> float:
        self._tries += 1
        return backoff_seconds(self._tries - 1, self._shortest, self._longest, self._random)
