"""The handling of updates, which begins with an offer of a device and ends with a receipt of the coordinator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from protofleet.coordinator.enrolments import AnswerEnrolments
from protofleet.coordinator.gate.gate import Contradiction, FetchAnswer, Gate, NotAsked, RefuseAnswer
from protofleet.coordinator.observe.measured import counted
from protofleet.coordinator.participants import Participants
from protofleet.coordinator.question import OpenQuestion
from protofleet.coordinator.round.events import Answered, Drop, Event
from protofleet.coordinator.secagg.question import SumAsk
from protofleet.coordinator.spool.releases import ReleaseLedger
from protofleet.coordinator.spool.spool import Accepted, Spool
from protofleet.coordinator.spool.uncoded import UncodedBytes
from protofleet.coordinator.spool.update_reader import UpdateReader
from protofleet.methods.contract.base import Ask
from protofleet.protocol.link.coordinator_run import CoordinatorRunLink
from protofleet.protocol.wire.messages import Receipt, Update
from protofleet.protocol.wire.names import EVALUATE
from protofleet.protocol.wire.reasons import Problem, Rejected


class AnswerReceiver:
    """The receiver of updates. It also decides which of the offered updates the link fetches.

    The round machine decides what an update means for the round.
    """

    def __init__(
        self, spool: Spool, link: CoordinatorRunLink, gate: Gate, question: OpenQuestion, participants: Participants,
        norm: float, happen: Callable[[Event], None], tell_observers: Callable[[Update], None],
        perform: Callable[[Drop], None], reader: UpdateReader, uncoded: UncodedBytes,
        enrolments: AnswerEnrolments, releases: ReleaseLedger | None = None,
    ) -> None:  # fmt: skip
        """Set up the receiver; `happen` receives an event for every update that can be judged.

        `norm` is the setting `limits.norm`. `perform` puts a command into the command queue. The queue sends
        the messages of a command only after the data of the turn are committed to the disk.
        """
        self._spool, self._link, self._gate, self._question = spool, link, gate, question
        self._participants, self._norm = participants, norm
        self._happen, self._tell_observers, self._perform = happen, tell_observers, perform
        self._reader, self._uncoded, self._enrolments = reader, uncoded, enrolments
        self._releases = releases
        # Updates that are on the disk and not accepted yet, by device.
        self._fetched: dict[str, Accepted] = {}

    # Methods that the link calls.

    def is_expected(self, update: Update) -> bool:
        return self._gate.is_expected(update)

    def admit(self, update: Update, size: int, name: bytes) -> bool:
        """Return whether to fetch the update."""
        device = update.device
        match self._gate.decide(update, size, name):
            case FetchAnswer():
                self._enrolments.offered(device)
                return True
            case RefuseAnswer(problem):
                self._refuse(update, problem)
            case Contradiction(problem):
                self._perform(Drop(device, update.round, update.phase, "refused", problem))
            case NotAsked():
                self._participants.unasked_answer_received(device, update.round)
                self._judged(update, None)
        return False

    def unusable(self, update: Update, fault: Rejected) -> None:
        """Refuse an update whose bytes cannot be used."""
        self._spool.check_claim()
        self._refuse(update, Problem(fault.reason, str(fault)))

    def fetched(self, update: Update, name: bytes) -> None:
        """Check an update that was stored under this name, and pass it to the round machine."""
        device, ask = update.device, self._question.ask_of(update.phase)
        assert ask is not None, "an answer is fetched only if its task is known"
        self._gate.completed(device)
        examples = self._participants.members[device].examples
        if problem := self._problem_with(ask, update, name, examples):
            self._spool.discard_answer(device, name)
            self._refuse(update, problem)
            return
        update = replace(update, metrics=counted(update.metrics, self._participants.measures))
        self._fetched[device] = Accepted(device, update.base, name, update.examples, update.metrics)
        self._tell_observers(update)
        self._judged(update, None)
        if device in self._fetched:  # The update is late, and waits for the next buffered round.
            self._spool.waiting[device] = name

    def _problem_with(self, ask: Ask, update: Update, name: bytes, examples: int) -> Problem | None:
        try:
            payload = self._reader.payload(update.arrays, update.base, self._gate.most_of(update), name)
            problem = ask.problem_with(payload, examples, self._norm)
            if problem is None and isinstance(ask, SumAsk):
                problem = ask.verify(update.device, payload)
        except Rejected as fault:  # The form of a bundle, or of a record in a bundle, is wrong.
            return Problem(fault.reason, str(fault))
        if problem is None:
            self._uncoded.add_update(self._gate.round, update.device, name, payload)
        return problem

    def _refuse(self, update: Update, problem: Problem) -> None:
        self._gate.refused(update.device, problem)
        self._judged(update, problem)

    def _judged(self, update: Update, problem: Problem | None) -> None:
        self._happen(Answered(update.device, update.round, update.phase, update.base, problem))

    # Methods that carry out the decisions of the round machine.

    def accept(self, device: str, round: int, phase: str, staleness: int = 0) -> None:
        """Accept the update of a device for this round; its task is `staleness` rounds old."""
        if phase != EVALUATE:
            self._enrolments.accepted(device, round)
        party = self._link.party
        last_heard, holder = party.last_heard(device), party.holder_of(device)
        answer = replace(self._fetched[device], staleness=staleness)
        self._spool.accept(round, phase, answer, last_heard, holder)
        if self._releases and phase != EVALUATE and (ask := self._question.ask_of(phase)):
            self._write_release(device, round, phase, answer.object, ask)
        self._let_go(device)
        self._question.device_answered(device, answer.base, answer.object)
        party.rate_limiter.frame_was_useful(device)

    def _write_release(self, device: str, round: int, phase: str, name: bytes, ask: Ask) -> None:
        """Write the release of an update; of the steps of a masked sum, only one releases numbers."""
        assert self._releases is not None, "only a run with dp has releases"
        if not isinstance(ask, SumAsk):
            self._releases.accepted(device, round, phase, name, ask.wants)
        elif ask.noise is not None:
            self._releases.accepted(device, round, phase, name, ask.wants, ask.noise)

    def send_receipt(self, device: str, round: int, phase: str, problem: Problem | None) -> None:
        verdict, reason = ("refused", problem.message) if problem else ("accepted", "")
        self._link.send(device, Receipt(round, phase, verdict, reason))

    def drop(self, drop: Drop) -> None:
        self._let_go(drop.device)
        self._link.meter.rejected[drop.problem.reason] += 1

    def _let_go(self, device: str) -> None:
        self._fetched.pop(device, None)
        self._spool.waiting.pop(device, None)
