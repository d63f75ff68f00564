"""One direction of one TCP connection: in order, at a limited speed, and silent while it is blocked."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.simulator.clock import Clock


@dataclass
class Weather:
    """The state of the network of one party; the nemesis changes it during the run."""

    delay: float = 0.01
    jitter: float = 0.0
    bytes_per_second: float = 1e8
    reorder: bool = False  # TCP never reorders, but a chain of bridges may.


class Pipe:
    def __init__(self, clock: Clock, dice: random.Random, weather: Weather, what: str) -> None:
        self._clock, self._dice, self._weather, self._what = clock, dice, weather, what
        self._free = self._last = 0.0
        self._held: list[tuple[int, str, Callable[[], None]]] = []
        self.blocked = self.dead = False

    def send(self, size: int, what: str, arrive: Callable[[], None]) -> None:
        if self.dead:
            return
        if self.blocked:
            self._held.append((size, what, arrive))
            return
        w, now = self._weather, self._clock.now
        self._free = max(now, self._free) + size / w.bytes_per_second
        when = self._free + w.delay + w.jitter * self._dice.random()
        if not w.reorder:
            when = self._last = max(when, self._last)
        self._clock.at(when, f"{self._what} {what}", lambda: self._arrive(size, what, arrive))

    def _arrive(self, size: int, what: str, arrive: Callable[[], None]) -> None:
        if self.dead:
            return
        if self.blocked:  # The packet was on the way when the network failed.
            self._held.append((size, what, arrive))
        else:
            arrive()

    def block(self) -> None:
        self.blocked = True

    def heal(self) -> None:
        """Unblock the pipe, and send the held packets again as TCP does."""
        if self.blocked:
            self.blocked, held = False, self._held
            self._held = []
            for packet in held:
                self.send(*packet)
