"""The time of a device's next hello: pauses grow, but a device that is missed sends one at once.

The device may be quiet only when this coordinator has sent its plan to it, because that shows that the
coordinator has got its hello. From then on the coordinator names the device in its `here` whenever it waits
for it. After a bye the coordinator must get a new hello from the device. A task or a receipt shows less than
a welcome: a restarted coordinator knows from its disk which devices it asks, and it accepts no answer before
it has sent its plan. So if the first message from a coordinator is not its birth message, the device sends a
hello at once.

Some events reach all devices at one moment, for example a restart of the broker. Each device answers them at
a different time.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

from protofleet.protocol.wire.messages import HERE, Message, Refusal, State, Task, Welcome

HELLO_SECONDS: Final = 15.0  # seconds between hellos at first, while the device gets no message
HEARD_SECONDS: Final = 120.0  # seconds without a `here`; then the coordinator is gone, or the run is over
QUIET_SECONDS: Final = 600.0  # most seconds between hellos of a device that the coordinator does not wait for
SPREAD_SECONDS: Final = 6.0  # seconds over which all devices spread their hellos that answer one event
LEAST_OF_QUIET: Final = 0.75  # so that of a thousand quiet devices at most two send a hello in one second


@dataclass
class HelloTimer:
    name: str  # the device's name: by it pauses differ between devices and repeat in a simulation
    not_before: float = 0.0  # turn of this device among all that answer one event
    _epoch: int | None = None  # epoch of the coordinator that sent the last message
    # Whether the last `here` had a round status, which names the devices that the coordinator misses. None:
    # no `here` has come.
    _names_missing: bool | None = None
    _is_welcome: bool = False  # whether this coordinator has sent its plan
    _sent_at: float = 0.0
    _hello_sent: bool = True  # whether this device has sent it a hello since its first message
    _unanswered: int = 0  # number of hellos since the pauses were short
    _pause: float = HELLO_SECONDS  # pause after the last of these hellos, in seconds
    _quiet: float = QUIET_SECONDS
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(f"{self.name} says hello")

    @property
    def was_welcomed(self) -> bool:
        """Return whether this coordinator has sent its plan, which shows that it has got a hello."""
        return self._is_welcome

    def heard(self, message: Message, epoch: int) -> None:
        """Note a message of the coordinator; any message may change when the next hello is due."""
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
        """Forget the last `here`, after a new connection or when the device has dropped its job."""
        self._names_missing = None
        self.reset_backoff()

    def reset_backoff(self) -> None:
        """Make the pauses short again."""
        self._unanswered = 0
        self._draw_pause()

    def _draw_pause(self) -> None:
        most = min(HELLO_SECONDS * 2.0 ** min(self._unanswered, 16), QUIET_SECONDS)
        self._pause = most * self._random.uniform(0.5, 1.0)

    def bye_sent(self) -> None:
        """Note a bye: from now on the coordinator does not wait for the device."""
        self._reset()

    def _reset(self) -> None:
        self._is_welcome = False
        self.forget_last_here()

    def spread(self, now: float) -> None:
        """Draw this device's turn, because all devices may be about to send a hello; most turns are soon."""
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
            case False:  # this coordinator notices a lost task only by a hello
                return now + HELLO_SECONDS
            case None:
                return now + self._pause


def is_birth(message: Message) -> bool:
    """Return whether a coordinator says that it is online, for the first time or over a new connection."""
    return isinstance(message, State) and message.online and message.reason != HERE
