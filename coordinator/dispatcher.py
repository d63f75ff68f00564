"""Ask each device one question at a time, although several runs may ask the same device.

A device works on one task at a time. While a device has the task of another run in hand, a task waits here. The
device is free again after a receipt for its update, when it leaves, after a restart, and when its hello says that it
does not work on that task.

When a device becomes free, the run goes first that has had the least time of devices for its weight. The tasks in
hand are not stored: after a restart of the coordinator, each run asks anew, and a device repeats its update.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Protocol

from protofleet.coordinator.round.events import Send


class Asker(Protocol):
    """A run that sends tasks."""

    def device_seconds(self) -> float:
        """Return the seconds for which devices have worked for this run; the number survives a restart."""

    def ask(self, send: Send) -> None:
        """Send a task that the dispatcher held back."""


@dataclass(slots=True)
class Share:
    """The claim of a run on the devices."""

    asker: Asker
    weight: float
    # Seconds that count as if devices had already worked for the run.
    lift: float

    @property
    def had(self) -> float:
        return self.lift + self.asker.device_seconds() / self.weight


@dataclass(frozen=True, slots=True)
class InHand:
    """The task that a device works on, as far as the coordinator knows."""

    run: str
    boot: int
    since: float


@dataclass(frozen=True, slots=True)
class HeldTask:
    """A task that waits until its device is free."""

    send: Send
    since: float


class Dispatcher:
    def __init__(self, clock: Callable[[], float], boot_of: Callable[[str], int] = lambda device: 0) -> None:
        """Create a dispatcher; `boot_of` returns the boot of the device's newest message."""
        self._clock, self._boot_of = clock, boot_of
        self._shares: dict[str, Share] = {}
        self._in_hand: dict[str, InHand] = {}
        self._held: dict[str, dict[str, HeldTask]] = {}  # Device -> run -> task.

    def add(self, run: str, asker: Asker, weight: float, lift: float, starts: bool) -> None:
        """Let a run ask devices.

        A run that starts or resumes is lifted to the least of the other runs, so that it claims nothing for the time
        of its absence. A run that goes on after a restart of the coordinator keeps the lift that it had.
        """
        others = [other.had for name, other in self._shares.items() if name != run]
        self._shares[run] = share = Share(asker, weight, lift)
        if starts:
            share.lift += max(0.0, min(others, default=0.0) - share.had)

    def lift_of(self, run: str) -> float:
        """Return the lift of a run, which the caller stores with the run."""
        return self._shares[run].lift

    def weight_of(self, run: str) -> float:
        return self._shares[run].weight

    def worked(self, run: str, device: str) -> float:
        """Return the seconds since the device has got its task of this run; 0 if it has none in hand."""
        task = self._in_hand.get(device)
        return self._clock() - task.since if task and task.run == run else 0.0

    def remove(self, run: str) -> None:
        """Drop the tasks of a run that asks no more, and free the devices that work for it."""
        self.drop(run)
        self._shares.pop(run, None)
        for device in [device for device, task in self._in_hand.items() if task.run == run]:
            self._free(device)

    def may_ask(self, run: str, send: Send) -> bool:
        """Return whether the task may be sent now. If not, hold it until the device is free."""
        device = send.device
        if self.busy_with(device) not in ("", run):
            self._held.setdefault(device, {})[run] = HeldTask(send, self._clock())
            return False
        # A device that says hello while it works gets its task again. Its time counts from the first task.
        if device not in self._in_hand:
            self._take(device, run)
        return True

    def drop(self, run: str) -> None:
        """Drop the held tasks of a run, because its phase is closed."""
        for device in list(self._held):
            self._forget(device, run)

    def busy_with(self, device: str) -> str:
        """Return the run whose task the device has in hand, or ""."""
        task = self._in_hand.get(device)
        return task.run if task else ""

    def held_back(self, run: str, devices: Collection[str]) -> dict[str, str]:
        """Return those of the devices that this run could not ask yet, with the runs that they are busy with."""
        return {d: self.busy_with(d) for d in sorted(devices) if run in self._held.get(d, {})}

    def answered(self, run: str, device: str) -> None:
        """Record that the device has got a receipt for an update of this run."""
        if self.busy_with(device) == run:
            self._free(device)

    def left(self, run: str, device: str) -> None:
        """Record that the device takes no part in this run any more, until it joins again."""
        self._forget(device, run)
        self.answered(run, device)

    def hello_received(self, device: str, boot: int, working: str | None) -> None:
        """Free a device that has restarted, or that says that it works on the task of no run, or of another run.

        `working` is None for a device whose software does not say what it works on.
        """
        task = self._in_hand.get(device)
        if task and (boot > task.boot or working not in (None, task.run)):
            self._free(device)

    def _take(self, device: str, run: str) -> None:
        self._in_hand[device] = InHand(run, self._boot_of(device), self._clock())

    def _free(self, device: str) -> None:
        """Give the device to the run that has had the least, among those that wait for the device."""
        del self._in_hand[device]
        if not (held := self._held.get(device)):
            return
        run = min(held, key=lambda name: (self._shares[name].had, name))
        task = held[run]
        self._forget(device, run)
        self._take(device, run)
        # The time of the run counts from its own ask.
        seconds = max(0.0, task.send.seconds - (self._clock() - task.since))
        self._shares[run].asker.ask(replace(task.send, seconds=seconds))

    def _forget(self, device: str, run: str) -> None:
        held = self._held.get(device, {})
        held.pop(run, None)
        if not held:
            self._held.pop(device, None)
