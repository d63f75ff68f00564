"""When a device says hello again: ever more seldom, and at once where its coordinator misses it.

It may be quiet only once this coordinator has sent its plan to this device, so has heard its hello. From then on it
names the device in its `here` whenever it waits for it. A device that has sent a bye has to be heard again. A task or
a receipt shows less: a coordinator that was started again knows from its disk whom it asks, and gets no answer before
it has sent its plan. So a device that first hears of it by anything but its birth message sends a hello at once.

What reaches all devices at one moment, such as a broker that starts again, is answered by each at another.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

from protofleet.protocol.wire.messages import HERE, Message, Refusal, State, Task, Welcome

HELLO_SECONDS: Final = 15.0  # between hellos at first, while nothing is heard
HEARD_SECONDS: Final = 120.0  # without a `here`, after which the coordinator is gone, or the run is over
QUIET_SECONDS: Final = 600.0  # between hellos of a device that nobody waits for, at most
SPREAD_SECONDS: Final = 6.0  # over which the hellos of all devices are spread that answer one event
LEAST_OF_QUIET: Final = 0.75  # of a thousand quiet devices then two say hello in a second at most


@dataclass
class HelloTimer:
    name: str  # of the device, so that pauses differ between devices and repeat in a simulation
    not_before: float = 0.0  # the turn of this device among all that answer one event
    _epoch: int | None = None  # of the coordinator that was heard last
    # Whether the last `here` said which question is open; None: none has come.
    _names_missing: bool | None = None
    _is_welcome: bool = False  # this coordinator has sent its plan
    _sent_at: float = 0.0
    _hello_sent: bool = True  # to this coordinator, since it was first heard
    _unanswered: int = 0  # hellos since the pauses were short
    _pause: float = HELLO_SECONDS  # after the last hello, of them
    _quiet: float = QUIET_SECONDS
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(f"{self.name} says hello")

    @property
    def was_welcomed(self) -> bool:
        """Whether this coordinator has sent its plan, so has heard a hello of this device."""
        return self._is_welcome

    def heard(self, message: Message, epoch: int) -> None:
        """Any message of the coordinator may change when the next hello is due."""
        self.coordinator_is(epoch)
        match message:
            case State(online=True, reason=reason, now=status) if reason == HERE:
                self._names_missing = status is not None
            case State():
                self.forget_last_here()
            case Welcome():
                self._is_welcome = True
            case Task() | Refusal():
                self.reset_backoff()

    def coordinator_is(self, epoch: int) -> None:
        if epoch != self._epoch:
            self._epoch, self._hello_sent = epoch, False
            self._reset()

    def forget_last_here(self) -> None:
        """With a new connection, or after the device has dropped its job."""
        self._names_missing = None
        self.reset_backoff()

    def reset_backoff(self) -> None:
        """Pauses are short again."""
        self._unanswered = 0
        self._draw_pause()

    def _draw_pause(self) -> None:
        most = min(HELLO_SECONDS * 2.0 ** min(self._unanswered, 16), QUIET_SECONDS)
        self._pause = most * self._random.uniform(0.5, 1.0)

    def bye_sent(self) -> None:
        """From now on the coordinator does not wait for the device."""
        self._reset()

    def _reset(self) -> None:
        self._is_welcome = False
        self.forget_last_here()

    def spread(self, now: float) -> None:
        """All devices may be about to say hello now: this one does when it is its turn, which is soon for most."""
        if now >= self.not_before:
            self.not_before = now + SPREAD_SECONDS * self._random.random() ** 2

    def cancel_spread(self) -> None:
        self.not_before = 0.0

    def hello_sent(self, now: float) -> None:
        self._sent_at, self._hello_sent = now, True
        self._quiet = QUIET_SECONDS * self._random.uniform(LEAST_OF_QUIET, 1.0)
        self._draw_pause()
        self._unanswered += 1

    def next_hello(self, now: float) -> float:
        if self._sent_at < self.not_before:
            return max(now, self.not_before)
        if not self._hello_sent:
            return now
        if not self._is_welcome:  # the hello or its welcome may be lost
            return max(now, self._sent_at + self._pause)
        match self._names_missing:
            case True:
                return min(now + HEARD_SECONDS, self._sent_at + self._quiet)
            case False:  # it misses a lost task only when it is told
                return now + HELLO_SECONDS
            case None:
                return now + self._pause


def is_birth(message: Message) -> bool:
    """Whether its coordinator says that it is there, for the first time or over a new connection."""
    return isinstance(message, State) and message.online and message.reason != HERE
