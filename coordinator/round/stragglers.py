"""How long those who have answered the open ask took, and hence how long the rest of a cohort is worth waiting for.

Measured of this question alone, from the moment at which it was first put to a device until its answer is here: a
first phase is bounded like any other, a fleet that slows down gets more time by itself, and a kept answer that comes
at once when the same is asked again is no sign of speed. What counts is the time by which more than half of the
cohort have answered: so neither a half that is quick nor a minority that lies makes it short, and a minority that is
silent does not make it long.
"""

from __future__ import annotations

from collections.abc import Collection
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
            self._took.setdefault(key, now - self._began[key])

    def at(self, answered: Collection[str], missing: Collection[str], cohort: int, quorum: int) -> float:
        """When to give up the missing of so many; infinite while too few answers have been seen."""
        keys = [(self._question, device) for device in answered]
        took = sorted(self._took[key] for key in keys if key in self._took)
        enough = max(quorum, cohort // 2 + 1, 2)
        if not self.factor or len(took) < enough:
            return float("inf")
        asked = max((self._began[self._question, device] for device in missing), default=0.0)
        return max(self._least, asked + self.factor * took[enough - 1])
