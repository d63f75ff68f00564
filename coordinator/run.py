"""A run, which passes events to the round machine and carries out the commands of the machine.

The run itself makes no decision.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence

from protofleet.coordinator.answers import AnswerReceiver
from protofleet.coordinator.attendance import AttendanceLog
from protofleet.coordinator.budget import Budget
from protofleet.coordinator.command_queue import CommandQueue
from protofleet.coordinator.context import ProcessContext
from protofleet.coordinator.devices.limits import CoordinatorLimits
from protofleet.coordinator.gate.gate import Gate
from protofleet.coordinator.judged import ValidationOfAll
from protofleet.coordinator.observe.isolation import Isolation
from protofleet.coordinator.observe.view import RunObserver, RunView
from protofleet.coordinator.participants import Participants
from protofleet.coordinator.pause_log import PauseLog
from protofleet.coordinator.question import OpenQuestion
from protofleet.coordinator.round.events import (
    Accept,
    Advance,
    Advanced,
    Blame,
    Blamed,
    Budgeted,
    Close,
    Command,
    Dismiss,
    Diverge,
    Drop,
    Event,
    Exhaust,
    Finish,
    Forget,
    Joined,
    Judge,
    Left,
    Pause,
    PutAside,
    Repeat,
    Rollback,
    Save,
    Send,
    Stage,
    Unenrolled,
    Woke,
)
from protofleet.coordinator.round.machine import RoundMachine
from protofleet.coordinator.server.culprits import CulpritSearch, FailedRound
from protofleet.coordinator.server.runner import ServerRunner, Step
from protofleet.coordinator.spool.spool import Spool
from protofleet.coordinator.spool.uncoded import UncodedBytes
from protofleet.coordinator.spool.update_reader import stages_of_updates
from protofleet.methods.contract.bridge import to_numpy
from protofleet.methods.contract.plan import Plan
from protofleet.protocol.link.progress import TransferProgress
from protofleet.protocol.settings.budget import BudgetSettings
from protofleet.protocol.storage.disk import is_full
from protofleet.protocol.wire import forms
from protofleet.protocol.wire.arrays import parts
from protofleet.protocol.wire.messages import Finished, Receipt, Update
from protofleet.protocol.wire.reasons import Reason

log = logging.getLogger("protofleet.coordinator")


class Run:
    def __init__(
        self, plan: Plan, machine: RoundMachine, spool: Spool, context: ProcessContext,
        observers: Sequence[RunObserver] = (), limits: CoordinatorLimits | None = None,
        class_names: tuple[str, ...] = (), budget: BudgetSettings | None = None,
    ) -> None:  # fmt: skip
        self.plan, self.machine, self.spool, self.limits = plan, machine, spool, limits or CoordinatorLimits()
        machine.way_out = plan.variant.way_out_of_divergence
        self._context, self._link = context, context.link
        self.queue = CommandQueue(spool, self)
        outlier, confusion = self.limits.outlier, self.limits.confusion
        self.server_runner = ServerRunner(
            plan, spool, machine.rounds, outlier, confusion, machine.policy.weight_cap
        )
        self.culprit_search = CulpritSearch(self.server_runner.new_stepper, self.server_runner.arrays)
        chain = self.server_runner.chain
        self.question = OpenQuestion(machine, self._link, spool, self.limits.norm, plan, chain)
        feature_size = self.server_runner.server.model.embedding_size
        self.participants = Participants(
            plan, context, machine, spool, self.question, self.limits, class_names, feature_size, self.happen
        )
        self.uncoded = UncodedBytes(plan, spool, self.server_runner.reader)
        self.gate = Gate(
            self.limits, machine, spool, self.participants.members, self._link.answers, self.queue,
            stages_of_updates(plan),
        )  # fmt: skip
        self.answer_receiver = AnswerReceiver(
            spool, self._link, self.gate, self.question, self.participants, self.limits.norm, self.happen,
            self._tell_of_answer, self._drop, self.server_runner.reader, self.uncoded,
        )  # fmt: skip
        self.budget: Budget | None = None
        if budget is not None:
            self.budget = Budget(
                budget,
                plan,
                machine,
                spool,
                self._link.topics,
                lambda: context.enrolled_devices,
                context.wall,
            )
            self._link.on_packet = self.budget.packet
        self.attendance = AttendanceLog(machine.policy)
        self.validation_of_all = ValidationOfAll(plan, machine, spool, self.participants)
        self.pause_log = PauseLog()
        self.diverged = ""  # Reason why the run cannot go on; "" if it can.
        # The commands that end the run, if the run was already over when this process began.
        self._over: list[Command] = []
        self._advancing: Advance | None = None  # The step of the server half that the worker computes.
        self._too_large: Step | None = None  # A step whose broadcast was too large for every broker so far.
        self.isolation = Isolation(context.clock)
        self.observers = list(observers)
        self.view = RunView(
            plan, machine, spool, context, self.participants, self.server_runner, self.queue, self.limits,
            self.isolation, lambda: self.diverged, self.uncoded, self.budget.state if self.budget else None,
        )  # fmt: skip
        self._resume()

    def tell_of_devices(self, heard_from: Callable[[str], None]) -> None:
        """Call `heard_from` with the name of a device each time that the device itself sends a new message."""
        self._link.on_message = heard_from

    def tell_of_transfers(self, progress: Callable[[str, TransferProgress], None]) -> None:
        """Call `progress` every few seconds for each update that takes a long time to arrive."""
        self._link.answers.on_progress = progress

    @property
    def wake_at(self) -> float:
        machine = self.machine.wake_at or float("inf")
        budget = self.budget.wake_at if self.budget else float("inf")
        return min(machine, budget, self.queue.wake_at, self.participants.wake_at, self.attendance.wake_at)

    def wake(self) -> None:
        now = self._context.now
        self.participants.wake()
        self.queue.wake(now)
        self.participants.resolve_wills()
        if self.budget and now >= self.budget.wake_at:
            self._review_budget(self.budget, now)
        if self.machine.wake_at is not None and now >= self.machine.wake_at:
            self.happen(Woke())
        if now >= self.attendance.wake_at:
            self._say_who_is_missing(now)

    def _say_who_is_missing(self, now: float) -> None:
        """Log the devices that are missing.

        This method reads the list of all enrolled devices, so it is not called each time that the loop wakes.
        """
        m = self.machine
        first = (m.round, m.attempt) == (1, 0)
        self.attendance.say_if_due(
            first, m.roster, m.not_counted_on(now), self._context.enrolled_devices, now
        )

    def end_turn(self) -> None:
        """Commit the decisions since the last turn, then send the messages that follow from them."""
        self.queue.end_turn(self._context.now)

    def older_copy(self) -> str:
        """Return why the run cannot go on from this folder; "" if it can.

        The run cannot go on if most devices know later rounds than the folder.
        """
        present = {*self.machine.roster, *self.machine.cohort}
        return self.participants.older_copies.verdict(present, self._context.now)

    def note_traffic(self) -> None:
        if not self.queue.full_disk.problem:
            self.spool.save_traffic()

    def not_delivered(self, devices: Collection[str] | None) -> None:
        """Record that the broker refused a message to these devices.

        None means that the message was for all devices whose updates are missing.
        """
        self.question.undelivered.denied(self.machine.waited_for if devices is None else devices)

    def go_on(self) -> None:
        """Continue the run with a new connection."""
        if self.queue.is_held:
            self._begin()
        self._note_attendance(self._context.now)
        if step := self._too_large:
            self._too_large = None
            self._server_stepped(step)

    def _resume(self) -> None:
        """Go on with the round in which an earlier coordinator died, if there is one.

        Call this method before any message is received. The messages of the replay wait for the first
        connection, because a replay must divide its broadcasts to fit the limits of the broker. These limits
        are unknown before the first connection.
        """
        self.queue.hold()
        if recovered := self.spool.recover():
            past, members = recovered
            self.participants.resume(members, self.spool.domains(), past.roster)
            log.info("the run is resuming in round %d, attempt %d", past.round, past.attempt)
            damaged = [Forget()] if self.spool.damaged_answers else []
            commands = self.machine.resume(past)
            # The earlier coordinator died after the last round, so only the end of the run is left to do.
            self._over = [one for one in commands if isinstance(one, Finish)]
            if self.budget:
                self.budget.resume()
            self.queue.add([*damaged, *commands], self._context.now)
            for device in self._context.bans.ignored:  # The saved roster may hold devices that are ignored.
                self._context.error_boundary.exclude(device)

    def _begin(self) -> None:
        """Send the messages that waited for the first connection."""
        self.participants.older_copies.start_listening(self._context.now)
        self.queue.release()
        if self._over:
            for observer in self.observers:
                self.isolation.call(observer.happened, self.view, Woke(), self._over, self._context.now)

    def happen(self, event: Event) -> None:
        now = self._context.now
        ended = isinstance(event, Advanced) and event.phase is None
        if self.budget and not isinstance(event, Budgeted):
            if ended:
                self.budget.end_round()
            self._review_budget(self.budget, now)
        before = self.machine.stage
        held_back, wall = self.machine.next_round_at, self._context.wall()
        commands = self.machine.handle(event, now, wall)
        if self.budget and isinstance(event, Joined | Left | Unenrolled):
            self.budget.note_presence(event.device)
        changed = self.machine.stage is not before or bool(held_back) != bool(self.machine.next_round_at)
        if self.budget:
            self.budget.say_who_is_left_out()
            changed |= self.budget.note_wait()
        if self._context.connected and (changed or isinstance(event, Advanced)):
            self._set_here_timer(now)
            self._note_attendance(now)
        self.pause_log.next_round_at(self.machine.round, self.machine.next_round_at, wall)
        # At the end of a round, the observers write its result before the Save of the next round is carried
        # out. Otherwise a crash could lose the result.
        if not ended:
            self.queue.add(commands, now)
        for observer in self.observers:
            self.isolation.call(observer.happened, self.view, event, commands, now)
        if ended:
            self.queue.add(commands, now)

    def _review_budget(self, budget: Budget, now: float) -> None:
        """Inform the machine before its next decision if the devices have changed whose budget is spent."""
        if (event := budget.review(now)) is not None:
            self.happen(event)

    def _tell_of_answer(self, update: Update) -> None:
        for observer in self.observers:
            self.isolation.call(observer.answered, self.view, update, self._context.now)

    def _drop(self, drop: Drop) -> None:
        self.queue.add([drop], self._context.now)

    @property
    def _waits_for_devices(self) -> bool:
        """Return whether the run waits only for devices before it can begin a round."""
        return self.machine.stage is Stage.GATHERING and not self.machine.next_round_at

    def _note_attendance(self, now: float) -> None:
        waits_for_month = self.budget is not None and self.budget.wait is not None
        self.attendance.gathering(self._waits_for_devices and not waits_for_month, now)

    def _set_here_timer(self, now: float) -> None:
        if self._waits_for_devices or self.machine.stage is Stage.COLLECTING:
            self._context.here_timer.wait_for_devices(now)
        else:
            self._context.here_timer.wait_for_nobody()

    # Methods that carry out the commands of the machine.

    def write(self, command: Command) -> None:
        self._with_room(lambda: self._write(command))

    def commit(self) -> None:
        self._with_room(self.spool.commit)

    def _with_room(self, write: Callable[[], None]) -> None:
        try:
            write()
        except Exception as error:
            if not (is_full(error) and self._link.answers.has_unfinished):
                raise
            # The round cannot go on without this write. So free the space of unfinished updates, and write again. The
            # devices offer the unfinished updates again later.
            self._link.answers.abandon()
            write()

    def _write(self, command: Command) -> None:
        match command:
            case Save():
                self._save(command)
            case Forget():
                self.spool.delete_damaged_answers()
            case Rollback(why, missing):
                why += self.question.undelivered.describe(missing, self._context.connected)
                log.warning("round %d begins again: %s", self.machine.round, why)
                self.spool.rollback(self.machine.round)
                self.server_runner.restore()
            case PutAside():
                self._put_aside(command)
            case Judge(round, accuracy, words, oldest):
                if words:
                    log.info("round %d is the last one: %s", round, words)
                self.spool.judge(round, accuracy, words, oldest)
            case Exhaust(round, words):
                log.warning("the training ends with round %d: %s", round, words)
                if self.budget:
                    self.budget.spent.exhaust(round, words)
            case Pause(round, ended):
                self.spool.save_end(round, ended)
            case Diverge(round, reason):
                self.spool.diverge(round, reason)
                self.diverged = reason
            case Close(round, phase, devices):
                self.spool.close_phase(round, phase, devices)
            case Accept(device, round, phase):
                self.answer_receiver.accept(device, round, phase)
            case Drop():
                self.answer_receiver.drop(command)

    def say(self, command: Command) -> None:
        match command:
            case Advance():
                self._advance(command)
            case Blame():
                self._blame(command)
            case Accept(device, round, phase):
                self.answer_receiver.send_receipt(device, round, phase, None)
            case Repeat(device, round, phase, problem):
                self.answer_receiver.send_receipt(device, round, phase, problem)
            case Drop(device, round, phase, verdict, problem):
                self._link.send(device, Receipt(round, phase, verdict, problem.message))
            case Send(device, round, phase, seconds):
                self.question.send_to(device, round, phase, seconds, self._context.connected)
            case Dismiss(device):
                self._link.send(device, Finished(self.machine.rounds))
            case Finish() | Diverge():
                self._end()

    def _save(self, save: Save) -> None:
        self.participants.save_class_names()
        members, domains = self.participants.members, self.participants.domains
        roster = self.machine.roster - self.machine.unfunded
        saved = {d: members[d] for d in sorted({*save.cohort, *roster})}
        fleet = max(self._context.enrolled, len(save.cohort))
        self.spool.save(
            save.round, save.attempt, save.cohort, saved, self.server_runner.state(), roster, domains, fleet
        )
        if self.budget:
            self.budget.spent.begin_round(save.cohort)

    def _put_aside(self, command: PutAside) -> None:
        log.error(
            "the run goes back to round %d, which is repeated without the answer of %s: %s",
            command.round, ", ".join(command.aside), command.words,
        )  # fmt: skip
        if command.returned:
            log.error(
                "the answer of %s to round %d is used again, because the round failed without this answer too",
                ", ".join(command.returned), command.round,
            )  # fmt: skip
        self.spool.put_aside(
            command.round, command.phase, command.devices, command.aside, command.words, command.trial,
            command.returned,
        )  # fmt: skip
        self.server_runner.restore()
        self._link.meter.rejected[Reason.OUT_OF_BOUNDS] += len(command.aside)

    def _end(self) -> None:
        confirms = {device for device in self.machine.roster if self._link.understands(device, forms.BYE)}
        self._context.announce_the_end(confirms)

    # Calls of the server half, which runs on the thread of the worker.

    def _advance(self, advance: Advance) -> None:
        self._link.answers.abandon()
        self.question.close()
        self._advancing = advance
        members = [self.participants.members[d] for d in self.machine.cohort]
        answers = self.spool.answers(advance.round, advance.phase) if advance.phase else {}
        block = self._link.block
        self._context.worker.submit(
            lambda: self.server_runner.step(advance, members, answers, block), self._server_stepped
        )

    def _server_stepped(self, step: Step | Exception) -> None:
        if isinstance(step, Exception):
            if not is_full(step) or self._advancing is None:
                raise step
            self.queue.retry(self._advancing, step, self._context.now)
            return
        self.spool.check_claim()
        if step.manifest is not None and not self._fits(step.manifest.size):
            self._too_large = step
            return
        if self.plan.codec is not None and step.phase is not None:
            self.spool.note_used(step.round, step.phase, step.counted)
        if step.chain:
            self.spool.save_chain(step.chain)
        self._open(step)
        self._warn_of_outliers(step)
        for observer in self.observers:
            self.isolation.call(observer.stepped, self.view, step, self._context.now)
        self.participants.drop_unenrolled()
        base = step.manifest.object if step.manifest else b""
        if step.ask is not None:
            self.happen(Advanced(step.ask.phase, base, step.fault))
        else:
            self.happen(Advanced(None, base, step.fault, None if step.fault else self.validation_of_all()))

    def _open(self, step: Step) -> None:
        if step.ask is not None:
            self.gate.open(step.ask, len(self.machine.cohort))
            self.question.open(step.ask)
        if step.manifest is not None:
            self.question.offer(step.manifest)
        if step.ask is not None and step.manifest is not None:
            self.uncoded.add_broadcast(step.round, step.manifest.object, step.ask.payload, step.chain)

    def _warn_of_outliers(self, step: Step) -> None:
        for device, reason in step.aside.items():
            log.warning(
                "round %d %s: the answer of %s is put aside: %s", step.round, step.phase, device, reason
            )
            self._link.meter.rejected[Reason.OUT_OF_BOUNDS] += 1

    def _blame(self, blame: Blame) -> None:
        failed = None
        if saved := self.spool.saved_round(blame.round):
            # Include the devices that left before this process began.
            self.participants.restore(saved.members)
            next_cohort = None if blame.round == self.machine.round else self.machine.cohort
            failed = FailedRound.load(self.spool, saved, self.participants.members, next_cohort)
        self._context.worker.submit(lambda: self.culprit_search.find(blame, failed), self._blamed)

    def _blamed(self, found: Blamed | Exception) -> None:
        if isinstance(found, Exception):
            raise found
        self.happen(found)

    # Methods that depend on the largest packet of the broker.

    def fits_through(self, max_packet: int) -> bool:
        """Return whether the run can go on with the largest packet of this broker.

        If the run can go on, remove the devices that cannot take part with this packet size. Divide the open
        broadcast into new blocks if its blocks are too large for this broker.
        """
        arrays = to_numpy(self.server_runner.server.payload())
        size = sum(n for _, n in parts(arrays)) if arrays else 0
        waiting = self._too_large.manifest if self._too_large else None
        largest = max(size, self.question.size, waiting.size if waiting else 0)
        if not self.question.adapt(largest, self._context.now, max_packet):
            return False
        self.participants.drop_unfit()
        self.question.cut_anew()
        return True

    def _fits(self, size: int) -> bool:
        if size <= self.question.carried:
            return True
        if not self.question.adapt(size, self._context.now):
            return False
        self.participants.drop_unfit()
        return True
