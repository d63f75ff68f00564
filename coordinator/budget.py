"""The budget of a run and of each of its devices: it charges bytes to devices, and finds the budgets that are spent.

A device gets a task only if its budget holds one more round and the evaluation at the end. A round counts with its
closed form, or with the largest round of this device so far if that is larger. If the closed form is only a largest
size, the largest round so far replaces it. So a limit is not exceeded, unless messages are repeated, or a device
stays connected after its budget is spent.

The limits on the whole run, `bytes` and `device_hours`, are compared with the sums at the end of each round.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from types import MappingProxyType
from typing import Final

from protofleet.coordinator.observe.budget import BudgetState, BudgetWait
from protofleet.coordinator.round.events import Budgeted, Stage
from protofleet.coordinator.round.reader import MachineReader
from protofleet.coordinator.round_bytes import RoundCost, describe_budget, round_bytes
from protofleet.coordinator.spool.index import RunMismatchError
from protofleet.coordinator.spool.month import MonthLedger, end_of_month, month_at
from protofleet.coordinator.spool.spent import SpentBytes
from protofleet.coordinator.spool.spool import Spool
from protofleet.methods.contract.plan import Plan
from protofleet.protocol.link.meter import human_bytes
from protofleet.protocol.settings.budget import BudgetSettings
from protofleet.protocol.storage.store import DamagedError
from protofleet.protocol.wire.name_list import first_names
from protofleet.protocol.wire.topics import Topics
from protofleet.runtime.logs import fields

log = logging.getLogger("protofleet.coordinator")

REVIEW_SECONDS: Final = 60.0  # Seconds between two reviews of all devices.
MOST_NAMED: Final = 5  # Largest number of devices that a log line names.
UNSAVED_SHARE: Final = 100  # At most one part in 100 of a limit is not saved.
RUN: Final = "run"
MONTH: Final = "month"
BYTES: Final = "bytes"
DEVICE_HOURS: Final = "device_hours"
HOUR_SECONDS: Final = 3600
NOTHING: Final[Mapping[str, int]] = {}


class Budget:
    def __init__(
        self, settings: BudgetSettings, plan: Plan, machine: MachineReader, spool: Spool, topics: Topics,
        enrolled: Callable[[], Collection[str]], wall: Callable[[], float], folder: Path | None = None,
    ) -> None:  # fmt: skip
        """Read what earlier coordinators have charged. The ledger of the month is in `folder`."""
        self.settings, self._machine, self._spool, self._topics = settings, machine, spool, topics
        self._enrolled, self._wall = enrolled, wall
        self._of_round: RoundCost = round_bytes(plan)
        self.limits: dict[str, int] = {}
        if settings.run_limit is not None:
            self.limits[RUN] = settings.run_limit
        if settings.month_bytes_per_device is not None:
            self.limits[MONTH] = int(settings.month_bytes_per_device)
        # Limits on the whole run, by the name of the setting.
        totals = {BYTES: settings.bytes, DEVICE_HOURS: settings.device_hours}
        self._totals = {name: limit for name, limit in totals.items() if limit is not None}
        self._used_totals: Mapping[str, float] = {}
        if DEVICE_HOURS in self._totals:
            spool.device_time.count()
        self.spent = spool.spent = SpentBytes(spool.index, month_at(wall()))
        # Bytes of each device in the other runs of this month.
        self._in_other_runs: Mapping[str, int] = NOTHING
        self._ledger: MonthLedger | None = None
        if MONTH in self.limits:
            is_expected = any(self.spent.in_month(device) for device, _ in self.spent.of_all())
            self._ledger = MonthLedger(folder or spool.folder.parents[1], spool.disk, is_expected)
        # Limit -> devices whose budget does not hold one more round, or not even an evaluation.
        self.without_round: dict[str, set[str]] = {name: set() for name in self.limits}
        self._without_evaluation: dict[str, set[str]] = {name: set() for name in self.limits}
        self._reported: Budgeted | None = None
        self._month_ends = 0.0  # Unix time at which the month of the last review ends.
        self._said = frozenset[str]()  # Devices without a task, as logged last.
        self._place = machine.round, machine.attempt  # The round and the attempt of the last decision.
        self._able = 0  # Number of enrolled devices whose budgets hold one more round, at the last review.
        self.wait: BudgetWait | None = (
            None  # The reason why no round begins before the next month, if there is one.
        )
        self._used = dict.fromkeys(
            self.limits, 0
        )  # Largest number of bytes of a device, at the last full review.
        self.wake_at = 0.0
        if self._ledger is not None:
            self._in_other_runs = self._ledger.of_others(month_at(wall()), self.spent.name)
        devices = machine.policy.cohort or machine.policy.quorum
        words = describe_budget(settings, plan, self._of_round, self._in_other_runs, machine.rounds, devices)
        log.info("budget: %s", words, extra=fields(event="budget"))

    def packet(self, topic: str, size: int) -> None:
        """Charge one packet to the devices that will receive it, or to the device that has sent it.

        Blocks of a broadcast are charged to each device of the cohort. Other messages to all devices are charged to
        each present device. If many bytes are not saved yet, they are saved before the packet is sent.
        """
        place = self._topics.parse(topic)
        if place is None:
            return
        if place.device:
            self.spent.charge(place.device, size)
        elif place.kind == "bcast":
            for device in self._machine.cohort:
                self.spent.charge(device, size)
        else:
            self.spent.published += size
        least = min([*self.limits.values(), self._totals.get(BYTES, math.inf)])
        if self.spent.unsaved * UNSAVED_SHARE > least:
            self._spool.save_traffic()

    def resume(self) -> None:
        """Treat as present only the devices that the machine treats as present after a restart."""
        self.spent.keep_present(self._machine.roster)
        self._place = self._machine.round, self._machine.attempt

    def note_presence(self, device: str) -> None:
        self.spent.set_present(device, device in self._machine.roster)

    def review(self, now: float) -> Budgeted | None:
        """Return the event for the machine if the devices have changed whose budget is spent; else None."""
        if is_of_all := now >= self.wake_at:
            self._begin_review(now)
            for name in self.limits:
                counted = (self._counted(name, device) for device, _ in self.spent.of_all())
                self._used[name] = max(counted, default=0)
            self._used_totals = self._sums()
        devices, self.spent.touched = self._enrolled() if is_of_all else self.spent.touched, set()
        if not self._judge(devices) and not is_of_all:
            return None
        if (found := self._event()) == self._reported:
            return None
        self._reported = found
        return found

    def end_round(self) -> None:
        """Note the size of the round; the next review is one of all devices."""
        self.spent.end_round()
        self.wake_at = 0.0

    def note_wait(self) -> bool:
        """Decide whether the run now waits for the next month; return whether this has changed."""
        m, spent = self._machine, self.without_round.get(MONTH, set())
        waits = m.stage is Stage.GATHERING and not m.next_round_at and spent and self._able < m.least
        until = self._month_ends if waits else 0.0
        if until == (self.wait.until if self.wait else 0.0):
            return False
        self.wait = BudgetWait(until, self._wait_words(until)) if waits else None
        if self.wait:
            log.warning("%s", self.wait.words, extra=fields(event="budget_wait"))
        return True

    def _wait_words(self, until: float) -> str:
        spent, enrolled, m = self.without_round[MONTH], self._enrolled(), self._machine
        count = f"{len(spent.intersection(enrolled))} of {len(enrolled)} devices"
        return (
            f"round {m.round} waits until {utc_words(until)}: {self._words(MONTH)} and does not hold one more round "
            f"of {count}: {self._used_words(MONTH, sorted(spent))}; "
            f"policy.quorum is {m.policy.quorum}; wait, or stop the run and resume it with a larger "
            "budget.month_bytes_per_device"
        )

    def of_device(self, device: str) -> Mapping[str, Sequence[int]]:
        """Return the bytes of a device so far and its largest number of bytes, for each limit."""
        return {name: (self._counted(name, device), limit) for name, limit in self.limits.items()}

    def until(self) -> float:
        """Return the Unix time at which the budget of the month begins anew."""
        return end_of_month(self._wall())

    def state(self) -> BudgetState:
        """Return the state for observers. Any thread may call this method."""
        spent = {name: len(devices) for name, devices in self.without_round.items()}
        price = self.settings.price_per_gb
        ratios = {name: used / self._totals[name] for name, used in self._used_totals.items()}
        return BudgetState(
            MappingProxyType(self.limits), MappingProxyType(self._used), spent, price, self.wait, ratios
        )

    def close(self) -> None:
        """Save the last bytes. The next coordinator reports a damaged ledger, or a folder that another one has."""
        with contextlib.suppress(DamagedError, RunMismatchError, FileNotFoundError):
            self._spool.save_traffic()
            self._write_ledger()
        if self._ledger is not None:
            self._ledger.close()

    def _begin_review(self, now: float) -> None:
        """Begin a new month if it is time, and exchange the bytes of the month with other runs."""
        self.wake_at = now + min(REVIEW_SECONDS, max(1.0, self.until() - self._wall()))
        month = month_at(self._wall())
        if month > self.spent.month:
            self._write_ledger()
            self.spent.begin_month(month)
        self._month_ends = self.until()
        if self._ledger is not None:
            self._write_ledger()
            self._in_other_runs = self._ledger.of_others(self.spent.month, self.spent.name)

    def _write_ledger(self) -> None:
        """Write the devices whose bytes have changed, and the present devices, which receive what is for all."""
        if self._ledger is None:
            return
        devices = self.spent.changed_in_month | set(self._machine.roster)
        sizes = {device: self.spent.in_month(device) for device in devices}
        if self._ledger.save(self.spent.month, self.spent.name, sizes):
            self.spent.changed_in_month = set()

    def _counted(self, limit: str, device: str) -> int:
        if limit == RUN:
            return self.spent.total(device)
        return self.spent.in_month(device) + self._in_other_runs.get(device, 0)

    def _judge(self, devices: Collection[str]) -> bool:
        """Decide for each of these devices what its budget holds; return whether anything has changed."""
        changed, evaluation = False, self._of_round.evaluation
        for device in devices:
            a_round = self._a_round(device)
            for name, limit in self.limits.items():
                left = limit - self._counted(name, device)
                changed |= set_member(self.without_round[name], device, left < a_round + evaluation)
                changed |= set_member(self._without_evaluation[name], device, left < evaluation)
        return changed

    def _event(self) -> Budgeted:
        run = self.without_round.get(RUN, set())
        no_round = frozenset().union(*self.without_round.values())
        enrolled = frozenset(self._enrolled()) if no_round else frozenset()
        spent, self._able = len(run.intersection(enrolled)), len(enrolled - no_round)
        return Budgeted(
            no_round,
            frozenset().union(*self._without_evaluation.values()),
            spent,
            len(enrolled) - spent,
            self._words(RUN) if RUN in self.limits else "",
            frozenset(self.without_round.get(MONTH, set()) - run),
            self._over_words(),
        )

    def _sums(self) -> Mapping[str, float]:
        """Return the bytes of all devices, and the hours that they have worked, as far as the run limits these."""
        found: dict[str, float] = {}
        if BYTES in self._totals:
            found[BYTES] = sum(size for _, size in self.spent.of_all())
        if DEVICE_HOURS in self._totals:
            found[DEVICE_HOURS] = self._spool.device_time.seconds / HOUR_SECONDS
        return found

    def _over_words(self) -> str:
        """Return which limits on the whole run are spent. The sums are left out, because they still grow."""
        s = self.settings
        parts = {
            BYTES: f"budget.bytes, {human_bytes(s.bytes or 0)}{s.cost_words(s.bytes or 0)}, is transferred",
            DEVICE_HOURS: f"the devices have worked for budget.device_hours, {s.device_hours or 0:g} hours",
        }
        return "; ".join(
            parts[name] for name, used in self._used_totals.items() if used >= self._totals[name]
        )

    def _words(self, limit: str) -> str:
        size = self.limits[limit]
        name = "bytes_per_device" if limit == RUN else "month_bytes_per_device"
        if limit == RUN and size != self.settings.bytes_per_device:
            name = "money_per_device"
        return f"budget.{name} is {human_bytes(size)}{self.settings.cost_words(size)}"

    def _used_words(self, limit: str, devices: Sequence[str]) -> str:
        def used_by(device: str) -> str:
            used = self._counted(limit, device)
            return f"{human_bytes(used)} used{self.settings.cost_words(used)}"

        return first_devices(devices, used_by)

    def say_who_is_left_out(self) -> None:
        """Log the devices that newly get no task; call this method after each decision of the machine.

        During a round, its bytes are not complete, so nothing is logged. Nothing is logged if no round follows.
        """
        m, place = self._machine, (self._machine.round, self._machine.attempt)
        if place == self._place and m.stage is not Stage.GATHERING:
            return
        self._place = place
        no_round = self._reported.no_round - m.kept if self._reported else frozenset()
        new, back, self._said = no_round - self._said, self._said - no_round, no_round
        if m.stage is Stage.FINISHED or m.is_last_evaluation:
            return
        parts = [
            f"{self._words(limit)}, which does not hold one more round and the last evaluation of "
            f"{self._left_words(limit, devices)}: no task is sent there {until}"
            for limit in self.limits
            if (devices := sorted(new & self.without_round[limit]))
            for until in ["for the rest of the run" if limit == RUN else f"until {utc_words(self.until())}"]
        ]
        if parts:
            log.warning("round %d: %s", m.round, "; ".join(parts), extra=fields(event="budget"))
        if back:
            log.info("budget: %d devices get tasks again", len(back), extra=fields(event="budget"))

    def _left_words(self, limit: str, devices: Sequence[str]) -> str:
        evaluation = human_bytes(self._of_round.evaluation)

        def left_for(device: str) -> str:
            left = max(0, self.limits[limit] - self._counted(limit, device))
            return f"{human_bytes(left)} left, needed {human_bytes(self._a_round(device))} and {evaluation}"

        count = f"{len(devices)} {'device' if len(devices) == 1 else 'devices'}"
        return f"{count}, {first_devices(devices, left_for)}"

    def _a_round(self, device: str) -> int:
        return self._of_round.one_more(self.spent.largest(device))


def set_member(members: set[str], name: str, is_member: bool) -> bool:
    """Add or remove a name; return whether the set has changed."""
    if (name in members) == is_member:
        return False
    (members.add if is_member else members.discard)(name)
    return True


def first_devices(devices: Sequence[str], words: Callable[[str], str]) -> str:
    """Return the names of the first devices, each with its words in brackets, and the number of the other devices."""
    return first_names([f"{device} ({words(device)})" for device in devices], MOST_NAMED)


def utc_words(at: float) -> str:
    return f"{datetime.fromtimestamp(at, timezone.utc):%Y-%m-%d %H:%M} UTC"
