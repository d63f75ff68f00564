"""One connection after another, on a thread of its own, until there shall be none."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from protofleet.protocol.transport.backoff import pause
from protofleet.protocol.transport.base import Disconnected

STABLE_SECONDS: Final = 10.0  # a connection that lasted this long starts the back-off afresh
FLAPS: Final = 3


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a connection ended."""

    reason: str
    final: bool = False  # trying again would be wrong
    wordless: bool = False  # it was up, and was cut without a DISCONNECT


class Backoff:
    """Tries come soon after a long connection, and ever more rarely while they fail."""

    def __init__(self, shortest: float, longest: float) -> None:
        self._shortest, self._longest = shortest, longest
        self._random = random.Random()
        self._tries = self._flaps = 0

    def ended(self, ending: Ending, lasted: float) -> None:
        if lasted > STABLE_SECONDS:
            self._tries = self._flaps = 0
        self._flaps = self._flaps + 1 if ending.wordless else 0

    @property
    def flapping(self) -> bool:
        """Brokers before Mosquitto 2.1 cut the older of two connections of one name without a word."""
        return self._flaps >= FLAPS

    def pause(self) -> float:
        self._tries += 1
        return pause(self._tries - 1, self._shortest, self._longest, self._random)


class Reconnecting:
    """Calls `connection`, which lasts as long as a connection does, and `tell`s why each one ended."""

    def __init__(
        self,
        name: str,
        connection: Callable[[], Ending],
        tell: Callable[[Disconnected], None],
        backoff: Backoff,
    ) -> None:
        self._name, self._connection, self._tell, self._backoff = name, connection, tell, backoff
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"mqtt-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def over(self) -> bool:
        return self._over.is_set()

    def end(self) -> None:
        """Start no further connection; whoever runs the present one looks at `over`."""
        self._over.set()

    def join(self, seconds: float) -> bool:
        """Whether it has come to its end."""
        if self._thread.ident is not None:  # it was started
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._over.is_set():
            began = time.monotonic()
            ending = self._connection()
            if self._over.is_set():
                return
            self._backoff.ended(ending, time.monotonic() - began)
            hint = f"; is another process connected as {self._name}?" if self._backoff.flapping else ""
            self._tell(Disconnected(ending.reason + hint, ending.final))
            if ending.final or self._over.wait(self._backoff.pause()):
                return
