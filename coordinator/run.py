"""A run, which passes events to the round machine and carries out the commands of the machine.

The run itself makes no decision.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from protofleet.coordinator.answers import AnswerReceiver
from protofleet.coordinator.attendance import AttendanceLog
from protofleet.coordinator.budget import Budget
from protofleet.coordinator.buffered import demand_buffered_fit
from protofleet.coordinator.command_queue import CommandQueue
from protofleet.coordinator.context import ProcessContext
from protofleet.coordinator.devices.limits import CoordinatorLimits
from protofleet.coordinator.devices.selection import DeviceSelection, SelectedDevices
from protofleet.coordinator.enrolments import AnswerEnrolments
from protofleet.coordinator.gate.gate import Gate
from protofleet.coordinator.judged import ValidationOfAll
from protofleet.coordinator.models.best import delete_best
from protofleet.coordinator.noise_words import noise_words
from protofleet.coordinator.observe.isolation import Isolation
from protofleet.coordinator.observe.view import RunObserver, RunView
from protofleet.coordinator.operator_commands import OperatorCommands
from protofleet.coordinator.participants import Participants
from protofleet.coordinator.pause_log import PauseLog
from protofleet.coordinator.private_fit import demand_dp_policy
from protofleet.coordinator.question import OpenQuestion
from protofleet.coordinator.queue.generation import Generation
from protofleet.coordinator.robust.fit import demand_robust_fit
from protofleet.coordinator.round.events import (
    BUDGET,
    NOBODY_LEFT,
    OPERATOR,
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
    EndEarly,
    Event,
    Finish,
    Forget,
    Joined,
    Judge,
    Left,
    Open,
    Pause,
    Paused,
    PutAside,
    Repeat,
    Rollback,
    Save,
    SavePause,
    SaveResult,
    SaveRounds,
    Send,
    Stage,
    Unenrolled,
    Woke,
)
from protofleet.coordinator.round.machine import RoundMachine
from protofleet.coordinator.round.past_sums import PastSums, devices_of
from protofleet.coordinator.round.sum_cohorts import SumCohorts
from protofleet.coordinator.run_times import RunTimes
from protofleet.coordinator.secagg.fit import demand_secagg_fit, summed_phases
from protofleet.coordinator.secagg.question import SumAsk, most_personal
from protofleet.coordinator.server.culprits import CulpritSearch, FailedRound
from protofleet.coordinator.server.runner import ServerRunner, Step
from protofleet.coordinator.spool.kept_rounds import KeptRounds
from protofleet.coordinator.spool.releases import ReleaseLedger
from protofleet.coordinator.spool.spool import Spool
from protofleet.coordinator.spool.sum_cohorts import SumCohortLedger
from protofleet.coordinator.spool.uncoded import UncodedBytes
from protofleet.coordinator.spool.update_reader import stages_of_updates
from protofleet.methods.contract.bridge import to_numpy
from protofleet.methods.contract.plan import Plan
from protofleet.protocol.link.coordinator_run import CoordinatorRunLink
from protofleet.protocol.link.progress import TransferProgress
from protofleet.protocol.settings.budget import BudgetSettings
from protofleet.protocol.storage.disk import is_full
from protofleet.protocol.wire import forms
from protofleet.protocol.wire.arrays import parts
from protofleet.protocol.wire.messages import Finished, Receipt, Update
from protofleet.protocol.wire.reasons import Reason

log = logging.getLogger("protofleet.coordinator")
T = TypeVar("T")
# Levels of an early end, by its cause.
LEVELS: Final = {BUDGET: logging.WARNING, NOBODY_LEFT: logging.INFO, OPERATOR: logging.WARNING}


class Run:
    def __init__(
        self, plan: Plan, machine: RoundMachine, spool: Spool, context: ProcessContext, link: CoordinatorRunLink,
        observers: Sequence[RunObserver] = (), limits: CoordinatorLimits | None = None,
        class_names: tuple[str, ...] = (), budget: BudgetSettings | None = None,
        selection: DeviceSelection | None = None, generation: Generation | None = None,
    ) -> None:  # fmt: skip
        self.plan, self.machine, self.spool, self.limits = plan, machine, spool, limits or CoordinatorLimits()
        demand_buffered_fit(machine.policy, plan)
        demand_robust_fit(machine.policy, plan)
        demand_secagg_fit(machine.policy, plan)
        demand_dp_policy(machine.policy, plan)
        machine.rounds = spool.total_rounds() or machine.rounds
        machine.way_out = plan.variant.way_out_of_divergence
        self._context, self.link = context, link
        self.generation = generation or Generation(link.run)
        self.selection = SelectedDevices(selection or DeviceSelection(), context.labels)
        self.times = RunTimes()
        self.queue = CommandQueue(spool, self)
        outlier, confusion = self.limits.outlier, self.limits.confusion
        self.sum_cohorts = SumCohortLedger(spool.index) if plan.secagg is not None else None
        past_sums = PastSums(self.sum_cohorts.stored if self.sum_cohorts else ())
        summed = summed_phases(plan, machine.policy, link, context.link.keyring, past_sums)
        self.server_runner = ServerRunner(
            plan,
            spool,
            outlier,
            confusion,
            machine.policy.weight_cap,
            machine.policy.weight_of,
            machine.policy.robust,
            summed,
        )
        self.kept_rounds = KeptRounds(plan, spool, self.server_runner.reader, self.limits.kept_bytes)
        machine.individuals = plan.secagg is None
        if summed is not None:
            machine.sums = SumCohorts(summed.apart, devices_of(summed.last_sums))
        self.culprit_search = CulpritSearch(self.server_runner.new_stepper, self.server_runner.arrays)
        chain = self.server_runner.chain
        self.question = OpenQuestion(machine, self.link, spool, self.limits.norm, plan, chain)
        server = self.server_runner.server
        self.enrolments = AnswerEnrolments(spool, context.link, server.keeps_answers)
        self.participants = Participants(
            plan, context, link, self.times, machine, spool, self.question, self.limits, class_names,
            server.model.embedding_size, self.happen, self.enrolments, self.selection,
            self.generation,
        )  # fmt: skip
        self.uncoded = UncodedBytes(plan, spool, self.server_runner.reader)
        self.gate = Gate(
            self.limits, machine, spool, self.participants.members, self.link.answers, self.queue,
            stages_of_updates(plan),
        )  # fmt: skip
        self.releases = ReleaseLedger(spool.index, plan, link.run) if plan.dp is not None else None
        self.answer_receiver = AnswerReceiver(
            spool, self.link, self.gate, self.question, self.participants, self.limits.norm, self.happen,
            self._tell_of_answer, self._drop, self.server_runner.reader, self.uncoded, self.enrolments,
            self.releases,
        )  # fmt: skip
        self.budget: Budget | None = None
        if budget is not None:
            self.budget = Budget(
                budget,
                plan,
                machine,
                spool,
                context.link.topics,
                self.enrolled_devices,
                context.wall,
            )
            self.link.on_packet = self.budget.packet
        if machine.policy.buffered:
            self.link.on_closed_broadcast = self._broadcast_is_closed
        self.attendance = AttendanceLog(machine.policy)
        self.validation_of_all = ValidationOfAll(plan, machine, spool, self.participants)
        self.pause_log = PauseLog()
        self.is_open = (
            True  # False after the service has closed the run; then results of the worker are dropped.
        )
        self.diverged = ""  # Reason why the run cannot go on; "" if it can.
        # The commands that end the run, if the run was already over when this process began.
        self._over: list[Command] = []
        self._advancing: Advance | None = None  # The step of the server half that the worker computes.
        self._too_large: Step | None = None  # A step whose broadcast was too large for every broker so far.
        self.isolation = Isolation(context.clock)
        self.observers = list(observers)
        self.view = RunView(
            plan, machine, spool, context, link, self.times, self.selection, self.participants, self.server_runner,
            self.queue, self.limits, self.isolation, lambda: self.diverged, self.uncoded,
            self.budget.state if self.budget else None, self.generation, self.releases,
        )  # fmt: skip
        self.operator_commands = OperatorCommands(
            machine, spool, self.queue, self.view, self.happen, context.wall, plan.variant.fixed_rounds
        )
        if plan.dp is not None:
            log.info("%s", noise_words(plan, len(self.enrolled_devices())))
        self._resume()

    def tell_of_devices(self, heard_from: Callable[[str], None]) -> None:
        """Call `heard_from` with the name of a device each time that the device itself sends a new message."""
        self.link.on_message = heard_from

    def tell_of_refusals(self, refused: Callable[[str, str], None]) -> None:
        """Call `refused` with the name of a device and the reason each time that its hello is refused."""
        self.participants.on_refusal = refused

    def tell_of_transfers(self, progress: Callable[[str, TransferProgress], None]) -> None:
        """Call `progress` every few seconds for each update that takes a long time to arrive."""
        self.link.answers.on_progress = progress

    @property
    def name(self) -> str:
        """Return the own name of the run."""
        return self.generation.run

    @property
    def wire_name(self) -> str:
        return self.link.run

    def enrolled_devices(self) -> frozenset[str]:
        """Return the enrolled devices that the run selects. This reads the list of all keys."""
        return self.selection.of(self._context.enrolled_devices)

    def has(self, device: str) -> bool:
        """Return whether a device takes part in the run, or has got a welcome of the run."""
        m = self.machine
        return device in m.roster or device in m.cohort or self.participants.awaits_hello_of(device)

    def drop_unselected(self) -> None:
        """Remove the devices that the run does not select any more. Devices of an open round stay until its end."""
        self.participants.drop_unselected(
            () if self.machine.stage is Stage.GATHERING else self.machine.cohort
        )

    @property
    def wake_at(self) -> float:
        machine = self.machine.wake_at or float("inf")
        budget = self.budget.wake_at if self.budget else float("inf")
        own = min(self.queue.wake_at, self.participants.wake_at, self.attendance.wake_at, self.times.wake_at)
        return min(machine, budget, own)

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
        if m.kept and (left := self.enrolled_devices() - m.kept):
            self.attendance.say_who_is_left(left, now)
            return
        first = (m.round, m.attempt) == (1, 0)
        self.attendance.say_if_due(first, m.roster, m.not_counted_on(now), self.enrolled_devices(), now)

    def end_turn(self) -> None:
        """Commit the decisions since the last turn, then send the messages that follow from them."""
        self.spool.check_in_place()
        self.queue.end_turn(self._context.now)
        self.operator_commands.end_turn()

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
        self.machine.paused = self.spool.paused()
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
        ended = isinstance(event, Advanced) and event.phase is None and not event.ended
        if self.budget and not isinstance(event, Budgeted):
            if ended:
                self.budget.end_round()
            self._review_budget(self.budget, now)
        before = self.machine.stage
        held_back, wall = self.machine.next_round_at, self._context.wall()
        commands = self.machine.handle(event, now, wall)
        if isinstance(event, Unenrolled) and self.machine.stage in (Stage.GATHERING, Stage.COLLECTING):
            self._forget_kept()  # In other stages the worker may use the folder; a step is followed by the same call.
        if isinstance(event, Left | Unenrolled):
            self._context.dispatcher.left(self.name, event.device)
        if self.budget and isinstance(event, Joined | Left | Unenrolled):
            self.budget.note_presence(event.device)
        changed = self.machine.stage is not before or bool(held_back) != bool(self.machine.next_round_at)
        changed |= isinstance(event, Paused)
        if self.budget:
            self.budget.say_who_is_left_out()
            changed |= self.budget.note_wait()
        if self._context.connected and (changed or isinstance(event, Advanced)):
            self._set_ask_timer(now)
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
        m = self.machine
        self.pause_log.waits_for_sum(m.round, m.sums, m.here_for_sum, now)

    def _broadcast_is_closed(self, device: str) -> None:
        """Send the open task to a device that cannot receive the broadcast of its earlier task any more."""
        if device in self.machine.roster & self.machine.at_work:
            self.happen(Joined(device))

    def _review_budget(self, budget: Budget, now: float) -> None:
        """Inform the machine before its next decision if the devices have changed whose budget is spent."""
        if (event := budget.review(now)) is not None:
            self.happen(event)

    def _tell_of_answer(self, update: Update) -> None:
        for observer in self.observers:
            self.isolation.call(observer.answered, self.view, update, self._context.now)

    def _drop(self, drop: Drop) -> None:
        self.queue.add([drop], self._context.now)

    def _note_attendance(self, now: float) -> None:
        waits_for_month = self.budget is not None and self.budget.wait is not None
        self.attendance.gathering(self.view.waits_for_devices and not waits_for_month, now)

    def _set_ask_timer(self, now: float) -> None:
        if self.view.waits_for_devices or self.machine.stage is Stage.COLLECTING:
            self.times.ask.wait_for_devices(now)
        else:
            self.times.ask.wait_for_nobody()

    # Methods that carry out the commands of the machine.

    def write(self, command: Command) -> None:
        self._with_room(lambda: self._write(command))

    def commit(self) -> None:
        self._with_room(self.spool.commit)

    def _with_room(self, write: Callable[[], None]) -> None:
        try:
            write()
        except Exception as error:
            if not (is_full(error) and self.link.answers.has_unfinished):
                raise
            # The round cannot go on without this write. So free the space of unfinished updates, and write again. The
            # devices offer the unfinished updates again later.
            self.link.answers.abandon()
            write()

    def _write(self, command: Command) -> None:
        match command:
            case Save():
                self._save(command)
            case Forget():
                self.spool.delete_damaged_answers()
            case Rollback(why, missing):
                busy = self._context.dispatcher.held_back(self.name, missing)
                asked = [device for device in missing if device not in busy]
                why += self.question.undelivered.describe(asked, self._context.connected)
                why += "".join(f"; {device} is busy with {run}" for device, run in busy.items())
                log.warning("round %d begins again: %s", self.machine.round, why)
                self.spool.rollback(self.machine.round)
                self.server_runner.restore()
            case PutAside():
                self._put_aside(command)
            case Judge(round, accuracy, words, oldest):
                if words:
                    log.info("round %d is the last one: %s", round, words)
                self.spool.judge(round, accuracy, words, oldest)
            case EndEarly(round, words, by):
                log.log(LEVELS[by], "the training ends with round %d: %s", round, words)
                self.spool.end_early(command)
            case Pause(round, ended):
                self.spool.save_end(round, ended)
            case SavePause(words):
                log.warning(
                    "%s", f"the run is paused: {words}" if words else "the run goes on after its pause"
                )
                self.spool.save_pause(words)
            case SaveRounds(rounds):
                log.info("the run has %d rounds now", rounds)
                self.spool.save_total_rounds(rounds)
            case SaveResult():
                self.spool.save_result(command)
            case Diverge(round, reason):
                self.spool.diverge(round, reason)
                self.diverged = reason
            case Close(round, phase, devices):
                self.spool.close_phase(round, phase, devices)
            case Open(task, oldest):
                self.spool.open_task(task, oldest)
            case Accept(device, round, phase, staleness):
                self.answer_receiver.accept(device, round + staleness, phase, staleness)
                worked = self._context.dispatcher.worked(self.name, device)
                self.spool.device_time.add(min(worked, self.machine.policy.patience_seconds))
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
                self._context.dispatcher.answered(self.name, device)
            case Repeat(device, round, phase, problem):
                self.answer_receiver.send_receipt(device, round, phase, problem)
                self._context.dispatcher.answered(self.name, device)
            case Drop(device, round, phase, verdict, problem):
                self.link.send(device, Receipt(round, phase, verdict, problem.message))
                self._context.dispatcher.answered(self.name, device)
            case Send():
                if self._context.dispatcher.may_ask(self.name, command):
                    self.ask(command)
            case Dismiss(device):
                self.link.send(device, Finished(self.machine.rounds))
            case Finish() | Diverge():
                self._end()

    def ask(self, send: Send) -> None:
        # The dispatcher also calls this method in the work for another run, which has set the device free.
        with self._context.around(self.name):
            self.question.send_to(send.device, send.round, send.phase, send.seconds, self._context.connected)

    def device_seconds(self) -> float:
        """Return the seconds for which devices have worked for the answers that this run has accepted."""
        return self.spool.device_time.seconds

    def _save(self, save: Save) -> None:
        self.participants.save_class_names()
        members, domains = self.participants.members, self.participants.domains
        roster = self.machine.roster - self.machine.unfunded
        saved = {d: members[d] for d in sorted({*save.cohort, *roster})}
        fleet = max(self.selection.count(self._context.enrolled_devices), len(save.cohort))
        if self.server_runner.has_forgotten:
            delete_best(self.spool)
        self.spool.save(
            save.round, save.attempt, save.cohort, saved, self.server_runner.state(), roster, domains, fleet,
            self.server_runner.has_forgotten,
        )  # fmt: skip
        self.server_runner.has_forgotten = False
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
        self.link.meter.rejected[Reason.OUT_OF_BOUNDS] += len(command.aside)

    def _end(self) -> None:
        self._forget_kept()
        confirms = {device for device in self.machine.roster if self.link.understands(device, forms.BYE)}
        self.times.end(confirms, self._context.now)
        self._context.on_run_end()

    # Calls of the server half, which runs on the thread of the worker.

    def _advance(self, advance: Advance) -> None:
        self._abandon_answers()
        self.question.close()
        self._context.dispatcher.drop(self.name)
        self._advancing = advance
        members = [self.participants.members[d] for d in self.machine.cohort]
        answers = self.spool.answers(advance.round, advance.phase) if advance.phase else {}
        block = self.link.block
        enrolled = self._enrolled_for(advance.round + (advance.phase is not None))
        self._forget_kept()
        holders = self._lasting_holders() if self.plan.keep else {}

        def step() -> Step:
            self.kept_rounds.keep(advance, members, answers, holders)
            found = self.server_runner.step(advance, members, answers, block, enrolled)
            if found.ask is None:
                self.kept_rounds.round_ended(advance)
            return found

        self._context.worker.submit(step, self._if_open(self._server_stepped))

    def _lasting_holders(self) -> dict[str, str]:
        """Return the enrolments under which devices have answered and which last."""
        has_ended = self.enrolments.has_ended
        found = {device: holder for device, (_, _, holder) in self.spool.last_heard().items()}
        return {device: holder for device, holder in found.items() if not has_ended(device, holder)}

    def _forget_kept(self) -> None:
        """Delete the kept answers of devices whose enrolments have ended."""
        self.kept_rounds.forget(self.enrolments.has_ended)

    def _enrolled_for(self, round: int) -> frozenset[str] | None:
        """Return the enrolled devices whose answers to earlier rounds may be kept, if the server half keeps answers.

        To read the list of enrolled devices takes time.
        """
        if not self.server_runner.server.keeps_answers:
            return None
        return self.enrolments.valid(self.enrolled_devices(), round)

    def _abandon_answers(self) -> None:
        """Stop the fetches of updates. A buffered round keeps those whose updates can count in the next round."""
        m, answers = self.machine, self.link.answers
        if not m.policy.buffered or m.is_last_evaluation:
            answers.abandon()
            return
        fetched = [received.message for _, received in answers.fetches.values()]
        for update in fetched:
            assert isinstance(update, Update), "only updates are fetched"
            if not m.expects_late(update.device, update.round, update.phase, update.base):
                answers.abandon(update.device)

    def _server_stepped(self, step: Step | Exception) -> None:
        if isinstance(step, Exception):
            if not is_full(step) or self._advancing is None:
                raise step
            self.queue.retry(self._advancing, step, self._context.now)
            return
        self.spool.check_claim()
        self._forget_kept()
        if step.manifest is not None and not self._fits(step.manifest.size, most_personal(step.ask)):
            self._too_large = step
            return
        if self.plan.codec is not None and step.phase is not None:
            self.spool.note_used(step.round, step.phase, step.counted)
        if step.chain:
            self.spool.save_chain(step.chain)
        if self.sum_cohorts:
            self.sum_cohorts.store(step.sums)
        self._open(step)
        self._warn_of_outliers(step)
        for observer in self.observers:
            self.isolation.call(observer.stepped, self.view, step, self._context.now)
        self.participants.drop_unenrolled()
        if step.ask is None:  # The round is over, and the next cohort is drawn from the selected devices.
            self.participants.drop_unselected()
        base = step.manifest.object if step.manifest else b""
        kept, sums = self.enrolments.valid(step.kept, step.round + 1), devices_of(step.sums)
        if step.ask is not None:
            opened = Advanced(step.ask.phase, base, step.fault, kept=kept, sums=sums)
            if isinstance(step.ask, SumAsk):
                ask = step.ask
                opened = replace(opened, least=ask.least, seconds=ask.seconds, final=ask.final)
            self.happen(opened)
            return
        if step.ended:
            self.happen(Advanced(None, ended=step.ended, sums=sums))
            return
        validation = None if step.fault else self.validation_of_all()
        left = self.enrolled_devices() - kept if kept else kept
        self.happen(Advanced(None, base, step.fault, validation, kept, left, sums=sums))

    def _open(self, step: Step) -> None:
        if step.ask is not None:
            self.gate.open(step.ask, len(self.machine.cohort), self.machine.evaluating)
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
            self.link.meter.rejected[Reason.OUT_OF_BOUNDS] += 1

    def _blame(self, blame: Blame) -> None:
        failed = None
        if saved := self.spool.saved_round(blame.round):
            # Include the devices that left before this process began.
            self.participants.restore(saved.members)
            next_cohort = None if blame.round == self.machine.round else self.machine.cohort
            members, enrolled = self.participants.members, self._enrolled_for(blame.round + 1)
            evaluates = self.machine.is_last_evaluation
            failed = FailedRound.load(self.spool, saved, members, next_cohort, enrolled, evaluates)
        self._context.worker.submit(
            lambda: self.culprit_search.find(blame, failed), self._if_open(self._blamed)
        )

    def _if_open(self, then: Callable[[T], None]) -> Callable[[T], None]:
        """Return a function that passes a result of the worker to `then`, unless the run has failed or is closed."""

        def take(result: T) -> None:
            if self.is_open and self.name not in self._context.failed:
                with self._context.around(self.name):
                    then(result)

        return take

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
        waiting = self._too_large
        largest = max(size, self.question.size, waiting.manifest.size if waiting and waiting.manifest else 0)
        personal = max(self.question.personal, most_personal(waiting.ask if waiting else None))
        if not self.question.adapt(largest, self._context.now, max_packet, personal):
            return False
        self.participants.drop_unfit()
        self.question.cut_anew()
        return True

    def _fits(self, size: int, personal: int) -> bool:
        if self.question.carries(size, personal):
            return True
        if not self.question.adapt(size, self._context.now, personal=personal):
            return False
        self.participants.drop_unfit()
        return True
