"""How long those who have answered the open ask took, and hence how long the rest of a cohort is worth waiting for.

Measured of this question alone, from the moment at which it was first put to a device until its answer is here: a
first phase is bounded like any other, a fleet that slows down gets more time by itself, and a kept answer that comes
at once when the same is asked again is no sign of speed. What counts is the time by which more than half of the
cohort have answered: so neither a half that is quick nor a minority that lies makes it short, and a minority that is
silent does not make it long.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

Question = tuple[int, str, bytes]  # round, phase, broadcast


@dataclass
class StragglerDeadline:
    factor: float  # so many times the measure; 0: it is never known
    floor: float = 0.0  # seconds; less than that is no measure of anybody
    _question: Question = (0, "", b"")
    _least: float = 0.0  # when the open ask may end at the earliest
    _began: dict[tuple[Question, str], float] = field(default_factory=dict)
    _took: dict[tuple[Question, str], float] = field(default_factory=dict)
    _longest: float = 0.0  # that an answer of the round before took
    # Of the open ask, from when it is first looked at: kept from then on, as it is looked at after each answer.
    _ordered: list[float] | None = None  # how long those who have answered took
    # The missing, who was asked last at the end; and others.
    _last_asked: list[str] = field(default_factory=list)

    def asked(
        self, question: Question, cohort: Collection[str], known: Collection[str], now: float,
        earlier: float | None = None, least: float = 0.0,
    ) -> None:  # fmt: skip
        """`earlier`: for so long an earlier process had asked it, which may have been stopped for longer than that.

        Who is among the `known` has answered it.
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
        """Tests may be larger than trainings: nobody gets less time than in the round before."""
        asked = max(self._began[key] for key in self._began if key[0] == self._question)
        self._least = max(self._least, asked + self.factor * self._longest)

    def answered(self, device: str, now: float) -> None:
        key = self._question, device
        if key in self._began:
            took = self._took.setdefault(key, now - self._began[key])
            if self._ordered is not None:
                insort(self._ordered, took)

    def at(self, answered: Collection[str], missing: AbstractSet[str], cohort: int, quorum: int) -> float:
        """When to give up the missing of so many; infinite while too few answers have been seen.

        From one look to the next `answered` is told of who has answered, and nobody is missing who was not before.
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
