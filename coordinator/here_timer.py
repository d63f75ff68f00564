"""The times at which a coordinator sends its `here` messages.

A `here` message names the devices for which the coordinator waits. The coordinator sends the message every minute.
While the coordinator waits for updates, it also sends the message 15, 30 and 60 s after the task. So a device that
has missed the task, or an earlier `here` message, learns that the coordinator waits for the device.
"""

from __future__ import annotations

from typing import Final

# Seconds from a task to the first `here` message that names the devices whose updates are missing.
ASK_SECONDS: Final = 15.0
# Seconds between two `here` messages. A device that waits much longer for the next message concludes that someone
# withholds the messages.
HERE_SECONDS: Final = 60.0
NEVER: Final = float("inf")


class HereTimer:
    """The time of the next regular `here` message of a process."""

    def __init__(self) -> None:
        self.wake_at = NEVER

    def announced(self, now: float) -> None:
        """Record that a `here` message, or the first message of a connection, was sent."""
        self.wake_at = now + HERE_SECONDS

    def stop(self) -> None:
        self.wake_at = NEVER


class AskTimer:
    """The times at which a run asks again for what it waits for."""

    def __init__(self) -> None:
        self.wake_at = NEVER
        # Seconds that will pass between the next two `here` messages about the open task.
        self._gap = ASK_SECONDS

    def wait_for_devices(self, now: float) -> None:
        """Record that the run waits for devices from now on."""
        self.wake_at, self._gap = now + ASK_SECONDS, ASK_SECONDS

    def wait_for_nobody(self) -> None:
        self.wake_at = NEVER

    def is_too_early_to_name(self, now: float) -> bool:
        """Return whether a task was sent so recently that a missing update does not mean a lost message."""
        return self._gap == ASK_SECONDS and now < self.wake_at < NEVER

    def asked(self, now: float) -> None:
        """Record that the devices for which the run waits were named."""
        if now >= self.wake_at:
            self.wake_at = now + self._gap if self._gap < HERE_SECONDS else NEVER
            self._gap *= 2
