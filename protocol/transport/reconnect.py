"""One connection after another on a thread of its own, and how long to wait before each next try."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from protofleet.protocol.transport.base import Disconnected

STABLE_SECONDS: Final = 10.0  # a connection that lasted this long starts the back-off afresh
FLAPS: Final = 3


@dataclass(frozen=True, slots=True)
class ConnectionEnd:
    """Why a connection ended."""

    reason: str
    final: bool = False  # trying again would be wrong
    without_disconnect: bool = False  # it was up, and no DISCONNECT came


def backoff_seconds(tries: int, shortest: float, longest: float, dice: random.Random) -> float:
    """Twice as long each time, and with jitter: a fleet that fails together must not come back together."""
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
        """Brokers before Mosquitto 2.1 close the older of two connections of one name without a DISCONNECT."""
        return self._flaps >= FLAPS

    def pause(self) -> float:
        self._tries += 1
        return backoff_seconds(self._tries - 1, self._shortest, self._longest, self._random)


class ReconnectLoop:
    """Calls `connection`, which returns when the connection ends, and passes to `tell` why it did."""

    def __init__(
        self,
        name: str,
        connection: Callable[[], ConnectionEnd],
        tell: Callable[[Disconnected], None],
        backoff: Backoff,
    ) -> None:
        self._name, self._connection, self._tell, self._backoff = name, connection, tell, backoff
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"mqtt-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    def stop(self) -> None:
        """Start no further connection; whoever runs the present one looks at `stopped`."""
        self._stopped.set()

    def join(self, seconds: float) -> bool:
        """Whether its thread has ended."""
        if self._thread.ident is not None:  # it was started
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopped.is_set():
            began = time.monotonic()
            ending = self._connection()
            if self._stopped.is_set():
                return
            self._backoff.ended(ending, time.monotonic() - began)
            hint = f"; is another process connected as {self._name}?" if self._backoff.flapping else ""
            self._tell(Disconnected(ending.reason + hint, ending.final))
            if ending.final or self._stopped.wait(self._backoff.pause()):
                return
