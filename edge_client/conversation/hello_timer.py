"""The time of a device's next hello.

The pauses between hellos grow. If the coordinator waits for a device, that device sends a hello at once.

A device may make long pauses only after the welcome of this coordinator, because the welcome shows that the
coordinator has received a hello. After the welcome, if the coordinator waits for the device, the `here` messages
name the device. After a bye, the coordinator needs a new hello of the device.

A restarted coordinator reads from its disk which devices have a task. So a task or a receipt does not show that
the coordinator has received a hello. But before a coordinator accepts an update from a device, the coordinator
must send its plan to this device. So a device sends a hello at once when it receives the first message of a restarted
coordinator.

Some events reach all devices at the same moment, for example a restart of the broker. Each device sends its
hello after such an event at a different time.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

from protofleet.protocol.wire.messages import HERE, Message, Refusal, State, Task, Welcome

HELLO_SECONDS: Final = 15.0  # longest pause after the first hello; this limit doubles after each later hello
HEARD_SECONDS: Final = 120.0  # seconds without a `here` after which the device sends a hello
QUIET_SECONDS: Final = 600.0  # longest pause between two hellos of a device
SPREAD_SECONDS: Final = 6.0  # seconds over which all devices spread their hellos after one event
# The shortest pause of a quiet device, as a fraction of QUIET_SECONDS. The pause is random, between this limit and
# QUIET_SECONDS. So 1,000 quiet devices send about two hellos a second.
LEAST_OF_QUIET: Final = 0.75


@dataclass
class HelloTimer:
    name: str  # name of the device, which is the seed of its random pauses
    # Earliest time of the next hello. The time is random after an event that reached all devices.
    not_before: float = 0.0
    _epoch: int | None = None  # epoch of the coordinator that sent the last message
    # True if the last `here` had a round status, which names the devices that the coordinator waits for. None if no
    # `here` has arrived.
    _names_missing: bool | None = None
    _is_welcome: bool = False  # whether this coordinator has sent its plan
    _sent_at: float = 0.0
    # Whether this device has sent a hello since the first message of this coordinator.
    _hello_sent: bool = True
    _unanswered: int = 0  # number of hellos since the pauses were last reset
    _pause: float = HELLO_SECONDS  # seconds of the pause after the last hello
    _quiet: float = QUIET_SECONDS
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(f"{self.name} says hello")

    @property
    def was_welcomed(self) -> bool:
        """Return whether this coordinator has sent a welcome to this device; a welcome is the reply to a hello."""
        return self._is_welcome

    def heard(self, message: Message, epoch: int) -> None:
        """Handle a message of the coordinator, which may change the time of the next hello."""
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
        """Forget the last `here`.

        Call this method after a new connection, and when the device has dropped its job.
        """
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
        """Record that a bye was sent. After a bye, the coordinator does not wait for the device."""
        self._reset()

    def _reset(self) -> None:
        self._is_welcome = False
        self.forget_last_here()

    def spread(self, now: float) -> None:
        """Draw a random time for the next hello, so that not all devices send a hello at once.

        Early times are more frequent than late times.
        """
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
        if not self._is_welcome:  # The hello or the welcome may be lost.
            return max(now, self._sent_at + self._pause)
        match self._names_missing:
            case True:
                return min(now + HEARD_SECONDS, self._sent_at + self._quiet)
            case False:
                # This coordinator does not name the devices that it waits for. It can notice that a task was lost
                # only when it receives a hello.
                return now + HELLO_SECONDS
            case None:
                return now + self._pause


def is_birth(message: Message) -> bool:
    """Return whether this is a birth message, which shows that the coordinator has started or connected again."""
    return isinstance(message, State) and message.online and message.reason != HERE
