"""The deadline for missing updates, computed from the time that the other devices of the cohort needed.

The time of a device is measured only for the open task. It begins when the task is first sent to the device,
and ends when the update of the device has arrived. So the first phase has a deadline like any other phase, and a
fleet that becomes slower gets more time. If a device gets the task again and sends a stored update at once, its
time still begins with the first sending of the task.

The deadline is `factor` times the time after which the updates of more than half of the cohort have arrived.
So a fast half or a lying minority cannot make the deadline early, and a silent minority
cannot make it late.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

Question = tuple[int, str, bytes]  # Round, phase and hash of the broadcast, which identify a task.


@dataclass
class StragglerDeadline:
    # The deadline is `factor` times the time after which more than half of the updates are here; 0: no deadline.
    factor: float
    floor: float = 0.0  # Shortest deadline in seconds.
    _question: Question = (0, "", b"")
    _least: float = 0.0  # Earliest time at which the run stops waiting for updates of the open task.
    _began: dict[tuple[Question, str], float] = field(default_factory=dict)
    _took: dict[tuple[Question, str], float] = field(default_factory=dict)
    _longest: float = 0.0  # Seconds that the slowest update of the previous round took.
    # Seconds that each received update for the open task took, in ascending order. The list is built at the first
    # check and then kept, because there is a check after each update.
    _ordered: list[float] | None = None
    # Devices whose updates are missing, in the order in which the devices were asked. The list may also hold
    # devices whose updates have arrived since.
    _last_asked: list[str] = field(default_factory=list)

    def asked(
        self, question: Question, cohort: Collection[str], known: Collection[str], now: float,
        earlier: float | None = None, least: float = 0.0,
    ) -> None:  # fmt: skip
        """Record that a task is sent to the cohort.

        `earlier` is the number of seconds for which an earlier process waited for updates of this task; the
        time between the end of that process and the start of this process does not count. `known` holds the
        devices whose updates for the task have already arrived. The deadline is at least `factor` times `least`
        seconds.
        """
        if question[0] != self._question[0]:
            self._longest = max(self._took.values(), default=0.0)
            self._began, self._took = {}, {}
        self._question, self._least = question, now + max(self.floor, self.factor * least)
        self._ordered = None
        for device in cohort:
            self._began.setdefault((question, device), now - (earlier or 0.0))
            if device in known and earlier is not None:
                self._took.setdefault((question, device), earlier)

    def asked_at_the_end(self) -> None:
        """Raise the shortest deadline of an evaluation.

        The new value is `factor` times the seconds that the slowest update of the previous round took. The factor
        is needed because an evaluation may take longer than the training.
        """
        asked = max(self._began[key] for key in self._began if key[0] == self._question)
        self._least = max(self._least, asked + self.factor * self._longest)

    def answered(self, device: str, now: float) -> None:
        key = self._question, device
        if key in self._began:
            took = self._took.setdefault(key, now - self._began[key])
            if self._ordered is not None:
                insort(self._ordered, took)

    def at(self, answered: Collection[str], missing: AbstractSet[str], cohort: int, quorum: int) -> float:
        """Return the time at which to stop waiting for missing devices; infinity while too few updates have arrived.

        `cohort` is the number of devices from which updates are expected. Between two calls of this method,
        the caller must call `answered` for each device that has sent an update, and must not add devices to
        `missing`.
        """
        if self._ordered is None:
            self._ordered = self._order(answered, missing)
        enough = max(quorum, cohort // 2 + 1, 2)
        if not self.factor or len(self._ordered) < enough:
            return float("inf")
        while self._last_asked and self._last_asked[-1] not in missing:
            self._last_asked.pop()
        asked = self._began[self._question, self._last_asked[-1]] if self._last_asked else 0.0
        return max(self._least, asked + self.factor * self._ordered[enough - 1])

    def _order(self, answered: Collection[str], missing: Collection[str]) -> list[float]:
        known = [device for device in missing if (self._question, device) in self._began]
        self._last_asked = sorted(known, key=lambda device: self._began[self._question, device])
        keys = [(self._question, device) for device in answered]
        return sorted(self._took[key] for key in keys if key in self._took)
