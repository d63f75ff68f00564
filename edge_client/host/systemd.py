"""Show regularly that a device runs, with notifications to systemd's watchdog and with the status file.

The systemd unit sets the time WatchdogSec. If a process sends no notification for this time, systemd restarts the
process. The agent's loop sends the notifications. So if the loop is blocked, systemd restarts the process, and the
coordinator sends the current task again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Mapping
from typing import Final

from protofleet.edge_client.agent import Agent
from protofleet.edge_client.host.status_file import StatusFile
from protofleet.protocol.transport.base import Done, Item

# Longest time between two notifications, in seconds. If a third of WatchdogSec is shorter, this third is used.
LONGEST_PAUSE_SECONDS: Final = 10.0


class NotifySocket:
    """The socket of the service manager; if there is no socket, `notify` does nothing."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        # The time WatchdogSec of the systemd unit; 0 means that there is no watchdog.
        self.seconds = int(environment.get("WATCHDOG_USEC", "0")) / 1e6

    def notify(self, *lines: str) -> None:
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.sendto("\n".join(lines).encode(), address)


class SystemdNotifier:
    """An `EventLoopApp` around the agent; after each step it writes the status file and notifies systemd."""

    def __init__(
        self, agent: Agent, systemd: NotifySocket, status: StatusFile | None = None,
        periodic_checks: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """Wrap an agent.

        `periodic_checks` is called before every notification.
        """
        self.agent, self._socket, self._status = agent, systemd, status
        self._periodic_checks = periodic_checks
        self._interval = min(LONGEST_PAUSE_SECONDS, systemd.seconds / 3 or LONGEST_PAUSE_SECONDS)
        self._next_notification_at = 0.0

    @property
    def wake_at(self) -> float:
        return min(self.agent.wake_at, self._next_notification_at)

    @property
    def finished(self) -> bool:
        return self.agent.finished

    def take(self, item: Item, now: float) -> None:
        self.agent.take(item, now)
        self._report(now)

    def wake(self, now: float) -> None:
        if now >= self.agent.wake_at:
            self.agent.wake(now)
        self._report(now)

    def end_turn(self, now: float) -> None:
        self.agent.end_turn(now)

    def _report(self, now: float) -> None:
        if self._status is not None:
            self._status.write(self.agent.view)
        if now < self._next_notification_at and not self.finished:
            return
        self._next_notification_at = now + self._interval
        self._periodic_checks()
        self._socket.notify("STOPPING=1" if self.finished else "WATCHDOG=1", f"STATUS={self._status_line()}")

    def _status_line(self) -> str:
        device = self.agent.view
        if device.finished:
            return device.problem or "over"
        if not device.connected:
            return "not connected to the broker"
        if not device.coordinator_answered:
            return "no coordinator has answered yet"
        waits = "an answer waits for its receipt" if device.awaits_receipt else "idle"
        return f"{'working' if device.working else waits}; last round {device.last_round}"


def drain_on_signal(agent: Agent, put: Callable[[Item], None]) -> None:
    """Make SIGUSR1 drain the agent: it takes no new task and ends when its current update has a receipt."""

    def drain(number: int, frame: object) -> None:
        put(Done(agent.drain))

    signal.signal(signal.SIGUSR1, drain)
