"""The deadline for devices that have not answered, from the time that the other devices took.

The time is measured only for the open question, from the moment at which a device was first asked until its
answer is here. So a first phase has a bound like any other phase. A fleet that slows down gets more time by
itself. A device that kept its answer and sends it at once when it is asked again does not count as fast.
The measure is the time by which more than half of the cohort have answered. So a quick half or a lying
minority cannot make it short, and a silent minority cannot make it long.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

Question = tuple[int, str, bytes]  # round, phase, broadcast


@dataclass
class StragglerDeadline:
    factor: float  # the deadline is this many times the measure; 0: there is no deadline
    floor: float = 0.0  # seconds that the deadline is never below
    _question: Question = (0, "", b"")
    _least: float = 0.0  # earliest time at which the open ask may end
    _began: dict[tuple[Question, str], float] = field(default_factory=dict)
    _took: dict[tuple[Question, str], float] = field(default_factory=dict)
    _longest: float = 0.0  # seconds that the slowest answer of the round before took
    # For the open ask, built at the first look and kept from then on, because there is a look after each
    # answer.
    _ordered: list[float] | None = None  # how long the devices that have answered took
    # Missing devices, the one that was asked last at the end; the list may also hold devices that are not
    # missing any more.
    _last_asked: list[str] = field(default_factory=list)

    def asked(
        self, question: Question, cohort: Collection[str], known: Collection[str], now: float,
        earlier: float | None = None, least: float = 0.0,
    ) -> None:  # fmt: skip
        """Note that a question is put to the cohort.

        `earlier` is the number of seconds for which an earlier process had asked it; that process may have
        been stopped for longer. The devices in `known` have answered it. `least` is a number of seconds;
        the deadline is at least `factor` times that long.
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
        """Give each device at least as much time as in the round before.

        Tests may be larger than trainings.
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
        """Return when to give up waiting for missing devices; infinity while too few answers are in.

        `cohort` is the number of devices that are expected to answer. Between two calls, `answered` must be
        called for each device that has answered, and no device becomes missing that was not missing before.
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
