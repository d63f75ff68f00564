"""The messages that a process must send to others.

It must respond to each hello, and it must repeat its own answer until the receipt. The module follows
docs/protocol.md, section 6, and the messages that the process hears and says. An answer is due only under a
coordinator that has sent its plan. A second mechanism later replaces most messages that are not sent,
so the run alone does not show that they are missing.
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

FIRST, LONGEST = 5.0, 60.0  # The first and the longest pause in seconds before an update is repeated.
SLOW = 4.0  # The first pause is this many times the time of the last receipt, if that is longer than FIRST.
CLOCK = 1.06  # The factor by which the clock of a device may be slow.
Question = tuple[int, str]  # Round and phase.


@dataclass
class Due:
    owner: str
    epoch: int = 0  # The epoch of a coordinator.
    _asked: dict[str, Question] = field(default_factory=dict)  # The open question of each asked device.
    _greeted: set[str] = field(default_factory=set)  # Devices whose hello came in this step.
    _owed: set[str] = field(default_factory=set)  # Devices that have said hello and wait for a task.
    _answer: Question | None = None  # The question of the last answer.
    _waits: bool = False  # The receipt of the last answer is missing.
    _first_said_at: float = 0.0
    _said_at: float = 0.0
    _receipt_seconds: float = 0.0  # Seconds that the last receipt took.
    _pause: float = FIRST
    _under: int = 0  # The epoch of the coordinator that a device follows.
    # The welcome of that coordinator has come. Before that, an answer may be another run's and is not sent.
    _welcome: bool = True

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
        """End the wait for the answer of a device, or of all devices.

        The answer of one device is in; for all devices, the phase has ended or its round begins again.
        """
        for name in list(self._asked) if device is None else [device]:
            self._asked.pop(name, None)
            self._owed.discard(name)

    def _answered(self, question: Question, now: float) -> None:
        if question == self._answer and self._waits:  # After its receipt, it would be a new answer.
            self._pause = min(2 * self._pause, LONGEST)
        else:
            self._first_said_at = now
            self._pause = min(max(FIRST, SLOW * CLOCK * self._receipt_seconds), LONGEST)
        self._answer, self._said_at, self._waits = question, now, True

    def look(self, now: float, newest: int, waited_for: Collection[str]) -> None:
        """Check the debts after a step of the process, which goes on.

        The process sends the messages of a turn at the end of the turn. The phase may have ended in the same
        turn. So the coordinator itself says for which devices it waits.
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
