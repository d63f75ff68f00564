"""What one process owes to others: a word to each hello, and its own answer again until its receipt.

By docs/protocol.md, section 6, and from what it hears and says: an answer is said under a coordinator that has said
its plan. A second mechanism makes up for most words that are not said, later, so that the run goes well all the same.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from protofleet.protocol.wire.messages import (
    Finished,
    Hello,
    Message,
    Receipt,
    Refusal,
    State,
    Task,
    Update,
    Welcome,
)
from protofleet.protocol.wire.names import COORDINATOR
from tests.simulator.promises import demand

FIRST, LONGEST = 5.0, 60.0  # before an update is said again
SLOW = 4.0  # times as long as the last receipt took, where that is later than FIRST
CLOCK = 1.06  # how much slower than the world a device may count them
Question = tuple[int, str]  # round and phase


@dataclass
class Due:
    owner: str
    epoch: int = 0  # of a coordinator
    _asked: dict[str, Question] = field(default_factory=dict)  # whose answers are waited for
    _greeted: set[str] = field(default_factory=set)  # by these, in this step
    _owed: set[str] = field(default_factory=set)  # of them, who waits to be asked
    _answer: Question | None = None  # that was said last
    _waits: bool = False  # for its receipt
    _first_said_at: float = 0.0
    _said_at: float = 0.0
    _receipt_seconds: float = 0.0  # that the last one took
    _pause: float = FIRST
    _under: int = 0  # epoch of the coordinator that a device goes by
    _welcome: bool = True  # of that one has come: else its answer may be another run's, and is not said

    def heard(self, sender: str, message: Message, epoch: int, now: float) -> None:
        if sender == COORDINATOR and epoch > self._under:
            self._under, self._welcome = epoch, False
        match message:
            case Welcome():
                self._welcome, self._said_at = True, now
            case Hello():
                self._greeted.add(sender)
                if sender in self._asked:
                    self._owed.add(sender)
            case Receipt(round, phase) if (round, phase) == self._answer:
                if self._waits:
                    self._receipt_seconds = now - self._first_said_at
                self._waits = False
            case Finished() | State(False, "finished"):
                self._waits = False

    def said(self, recipient: str, message: Message, now: float) -> None:
        match message:
            case Task(round, phase):
                self._asked[recipient] = (round, phase)
                self._owed.discard(recipient)
            case Receipt(round, phase) if self._asked.get(recipient) == (round, phase):
                self.asks_no_more(recipient)
            case Welcome() | Refusal() | Finished():
                self._owed.discard(recipient)
            case Hello(plan=b""):
                self._welcome = False
            case Update():
                self._answered((message.round, message.phase), now)

    def asks_no_more(self, device: str | None = None) -> None:
        """Of one its answer is in; of all, the phase has ended or its round begins again."""
        for name in list(self._asked) if device is None else [device]:
            self._asked.pop(name, None)
            self._owed.discard(name)

    def _answered(self, question: Question, now: float) -> None:
        if question == self._answer and self._waits:  # after its receipt it is another answer to the same
            self._pause = min(2 * self._pause, LONGEST)
        else:
            self._first_said_at = now
            self._pause = min(max(FIRST, SLOW * CLOCK * self._receipt_seconds), LONGEST)
        self._answer, self._said_at, self._waits = question, now, True

    def look(self, now: float, newest: int, waited_for: Collection[str]) -> None:
        """After a step of its process, which goes on.

        What a turn has asked is said at its end, and by then the phase may have ended in the same turn: so a
        coordinator's own word counts for whom it waits.
        """
        greeted, owed, waited = (
            sorted(self._greeted),
            sorted(self._owed & set(waited_for)),
            now - self._said_at,
        )
        self._greeted.clear()
        replaced = self.epoch and self.epoch < newest
        words = f"I4: epoch {self.epoch} goes on after hellos of {greeted}, and the run is epoch {newest}'s"
        demand(not (replaced and greeted), words)
        words = f"I13: {self.owner} waits for answers of {owed}, heard their hellos, and asked them nothing"
        demand(not owed, words)
        words = (
            f"I13: {self.owner}'s answer to {self._answer} has no receipt, and was said {waited:.1f} s ago"
        )
        demand(not (self._waits and self._welcome) or waited <= self._pause * CLOCK, words)
