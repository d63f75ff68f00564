"""The loop of many devices in one process: a fault of one device does not affect the others."""

from __future__ import annotations

import logging
import math
import queue
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from protofleet.edge_client.data.errors import DataError
from protofleet.edge_client.group.device import Device
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.transport.base import Done, Item
from protofleet.protocol.transport.mqtt import close_all
from protofleet.protocol.transport.receive_queue import ReceiveQueue
from protofleet.protocol.transport.timers import Timers
from protofleet.runtime.logs import lines_about
from protofleet.runtime.restart_backoff import RestartBackoff

# Seconds between two regular checks, for example of the board's heat.
CHECK_SECONDS = 10.0

log = logging.getLogger("protofleet.device")


class MemberQueue(ReceiveQueue):
    """The receive queue of one device, with its own limits.

    With each item that it receives, the queue puts itself into the queue `ready`. The loop of all devices waits for
    `ready`.
    """

    def __init__(self, ready: queue.SimpleQueue[MemberQueue]) -> None:
        super().__init__()
        self._ready = ready

    def put(self, item: Item, block: bool = True, timeout: float | None = None) -> None:
        super().put(item, block, timeout)
        self._ready.put(self)


# Function that assembles the device with this name.
Start: TypeAlias = Callable[[str], tuple[MemberQueue, Device]]


class DeviceGroup:
    """The devices of a process, as an `EventLoopApp`. Its items are the receive queues that have received something.

    If an error ends a device, the group assembles the device again, in the same way as systemd restarts the process
    of a single device. The pauses before the restarts grow. A device whose settings are wrong is not restarted. If
    the number of restarts is limited, the process exists only for one run. Such a process does not restart a device
    whose data are wrong or that cannot follow the run's plan.

    The dict `ended` has the reason for each device that ended with a problem or could not start. A device that runs
    again is removed from `ended`.
    """

    def __init__(
        self, names: Sequence[str], start: Start, most_restarts: float = math.inf,
        report: Callable[[DeviceGroup], None] = lambda group: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """Start all devices.

        `most_restarts` is the largest number of consecutive restarts of a device. `report` is called every few
        seconds and when a device has ended.
        """
        self._start, self._most_restarts, self._report, self._clock = start, most_restarts, report, clock
        self.ended = dict[str, str]()
        self._running, self._left = dict[MemberQueue, Device](), list[Device]()
        self._timers, self._check_at = Timers[MemberQueue](), clock()
        self._started_at = dict[str, float]()
        self._restarts, self._backoffs = Timers[str](), {name: RestartBackoff() for name in names}
        self._waiting, self._stopping = set[str](), False
        # True if a device has ended without a problem: then the run is over, and no device needs a restart.
        self._run_is_over = False
        for name in names:
            self._start_device(name)

    @property
    def wake_at(self) -> float:
        return min(self._timers.next_at, self._restarts.next_at, self._check_at)

    @property
    def finished(self) -> bool:
        return not self._running and (self._stopping or self._run_is_over or not self._waiting)

    @property
    def given_up(self) -> dict[str, str]:
        """Return the entries of `ended` for devices that will not be restarted."""
        return {name: problem for name, problem in self.ended.items() if name not in self._waiting}

    @property
    def running(self) -> Sequence[Device]:
        return list(self._running.values())

    def put(self, item: Item) -> None:
        """Put an item into the receive queues of all devices, and do not restart any device from now on.

        A signal handler may call this.
        """
        self._stopping = True
        for member in list(self._running):
            member.put(item)

    def drain(self) -> None:
        """Drain all devices, and do not restart any device from now on."""
        self._stopping = True
        for member, device in list(self._running.items()):
            member.put(Done(device.agent.drain))

    def take(self, member: MemberQueue, now: float) -> None:
        try:
            item = member.get_nowait()
        except queue.Empty:  # The queue was full and has dropped the item.
            return
        self._let(member, lambda device: device.agent.take(item, now))

    def wake(self, now: float) -> None:
        for member in self._timers.take_due(now):
            self._let(member, partial(_wake_device, now))
        if due := self._restarts.take_due(now):
            # The broker allows only one connection for each name, so the old connections must be closed first.
            self.close()
        for name in due:
            self._waiting.discard(name)
            if not self._stopping:
                self._start_device(name)
        if now >= self._check_at:
            self._check(now)

    def end_turn(self, now: float) -> None:
        """Do nothing, because a device sends each message at once."""

    def close(self) -> None:
        """Close the connections of all devices that have ended without an exception."""
        close_all([device.transport for device in self._left])
        self._left.clear()

    def _start_device(self, name: str) -> None:
        self._started_at[name] = self._clock()
        with lines_about(name):
            try:
                member, device = self._start(name)
            except (DataError, SettingsError) as error:
                log.error("cannot start: %s; the other devices of this process go on", error)
                # A disk with the data may be mounted later, but settings stay wrong until a user changes them.
                self._failed(name, str(error), 0 if isinstance(error, SettingsError) else self._most_repeats)
                return
            except Exception as error:
                log.exception("cannot start; the other devices of this process go on")
                self._failed(name, words_of(error), self._most_restarts)
                return
        self.ended.pop(name, None)
        self._running[member] = device
        device.agent.session.give_up_after(device.settings.patience_seconds, self._clock())
        self._set_timer(member)

    @property
    def _most_repeats(self) -> float:
        """Return the largest number of restarts after an error that comes again in the same run."""
        return 0 if self._most_restarts < math.inf else math.inf

    def _failed(self, name: str, problem: str, most_restarts: float) -> None:
        """Record why a device ended, and plan its restart after a pause if the limit of restarts allows a restart."""
        self.ended[name] = problem
        backoff = self._backoffs[name]
        pause = backoff.failed(self._clock() - self._started_at[name])
        if self._stopping or backoff.failures > most_restarts:
            return
        log.warning("starts again in %.1f s", pause)
        self._waiting.add(name)
        self._restarts.set(name, self._clock() + pause)

    def _check(self, now: float) -> None:
        self._check_at = now + CHECK_SECONDS
        for member in list(self._running):
            self._let(member, _check_device)
        self.close()
        self._report(self)

    def _let(self, member: MemberQueue, act: Callable[[Device], None]) -> None:
        if (device := self._running.get(member)) is None:
            return
        with lines_about(device.settings.name):
            try:
                act(device)
            except Exception as error:
                log.exception("ended by an error; the other devices of this process go on")
                self._end(member, words_of(error))
                device.transport.kill()
                return
            if device.agent.finished:
                self._run_is_over = self._run_is_over or not device.agent.view.problem
                self._end(member, device.agent.view.problem)
                self._left.append(device)
                return
        self._set_timer(member)

    def _set_timer(self, member: MemberQueue) -> None:
        self._timers.set(member, self._running[member].agent.wake_at)

    def _end(self, member: MemberQueue, problem: str) -> None:
        device = self._running.pop(member)
        self._timers.forget(member)
        device.pages.close()
        if device.status is not None:
            device.status.write(device.agent.view, problem)
        device.stop()
        if problem:
            most = self._most_repeats if device.agent.view.cannot_follow else self._most_restarts
            self._failed(device.settings.name, problem, most)
        self._report(self)


def words_of(error: Exception) -> str:
    """Return the text of an error.

    The messages of the project's own errors are sentences for the person who runs the device. For other errors,
    the type is needed too.
    """
    ours = type(error).__module__.startswith("protofleet.")
    return str(error) if ours else f"{type(error).__name__}: {error}"


def _wake_device(now: float, device: Device) -> None:
    if now >= device.agent.wake_at:
        device.agent.wake(now)


def _check_device(device: Device) -> None:
    device.check()
    if device.status is not None:
        device.status.write(device.agent.view)
