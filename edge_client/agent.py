"""The device: same question, same answer; one training at a time, off the network thread.

It never decides when a round ends, and it believes nothing delivered until the coordinator says so.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

from protofleet.edge_client.conversation.answer_delivery import AnswerDelivery, question_of
from protofleet.edge_client.conversation.coordinator_watchdog import CoordinatorWatchdog
from protofleet.edge_client.conversation.hello import HelloSender, plan_for
from protofleet.edge_client.conversation.hello_timer import HelloTimer
from protofleet.edge_client.conversation.old_messages import RefusalCheck, RunEndCheck
from protofleet.edge_client.conversation.retry_backoff import RetryBackoff
from protofleet.edge_client.evaluate import Splits
from protofleet.edge_client.job_runner import JobRunner
from protofleet.edge_client.state.device import DeviceState, TakenOverError
from protofleet.edge_client.state.disk_space import DiskSpaceCheck
from protofleet.edge_client.state.file import Answer
from protofleet.edge_client.state.heard import HeardFile, forget_higher_epoch, restore_epoch
from protofleet.edge_client.trainer.errors import TrainerDiedError
from protofleet.edge_client.trainer.job import Job, StartJob
from protofleet.edge_client.view import Observer
from protofleet.methods.contract.plan import Plan
from protofleet.protocol.link.base import Received
from protofleet.protocol.link.device import DeviceLink
from protofleet.protocol.link.rate_limit import TokenBucket
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.storage.disk import NoRoom, is_full
from protofleet.protocol.storage.store import DamagedError
from protofleet.protocol.transport.address import BrokerError
from protofleet.protocol.transport.base import Arrived, Connected, Denied, Disconnected, Done, Item, Stop
from protofleet.protocol.wire import forms
from protofleet.protocol.wire.messages import (
    HERE,
    About,
    Bye,
    Finished,
    Message,
    Receipt,
    Refusal,
    RoundStatus,
    State,
    Task,
    Welcome,
)
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.protocol.wire.printable import printable
from protofleet.protocol.wire.reasons import DisconnectReason, Reason, Rejected
from protofleet.runtime.event_loop import Worker
from protofleet.runtime.faults import OURS

log = logging.getLogger("protofleet.device")


class Agent:
    def __init__(
        self, data: Splits, start_job: StartJob, link: DeviceLink, state: DeviceState, worker: Worker, *,
        software: str = "", stays: bool = False, observers: tuple[Observer, ...] = (),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        self.data, self.link, self.state, self.worker = data, link, state, worker
        self.stays, self.observers = stays, observers
        self.runner = JobRunner(start_job, state, data, lambda: link.block, clock)
        wall = link.clock.after(state.started_last)
        self._heard_file = HeardFile(state.folder, state.disk, wall, state.renewed)
        link.clock = self._heard_file.clock
        self._run_end, self._refusals, self._hello_timer = RunEndCheck(), RefusalCheck(), HelloTimer()
        coordinator = link.keyring.get(COORDINATOR)
        holder = coordinator.holder if coordinator else ""
        self.link.epoch = restore_epoch(state, self._heard_file, link.clock, holder)
        last = self._heard_file.last
        self.link.remember({COORDINATOR: (last.epoch, last.sequence, holder)} if last.epoch else {})
        self.job: Job | None = None
        self.plan: Plan | None = None
        self._run = state.saved.run  # of which was heard last; plan, job and answers in hand are of it
        self.finished = False
        self.problem = ""  # why, where it ended before the run did
        self.disk_space = DiskSpaceCheck(state)
        self.heard = self.draining = self.idle = False
        self.receipts: Counter[str] = Counter()  # of this process, by verdict
        self.backoff = RetryBackoff(link.me.name)
        self.connected = False
        self._watchdog = CoordinatorWatchdog()
        self._log_limit = TokenBucket(rate=1.0, burst=20.0)
        self._hello_at = float("inf")
        self._hellos = HelloSender(link, data, state, software)
        self._welcomed_by = 0  # epoch of the coordinator whose welcome was the last
        self._question = ""  # being worked on
        self._working_on = (0, "")  # its round and phase
        self._next: Received | None = None
        self._delivery = AnswerDelivery(link)
        self._now = 0.0

    @property
    def wake_at(self) -> float:
        timers = (self._hello_at, self._delivery.wake_at, self._watchdog.alarm_at, self._run_end.at)
        return min(self.link.wake_at, *timers)

    @property
    def silent(self) -> bool:
        """Connected, and the coordinator has said nothing new for long."""
        return self._watchdog.expired

    @property
    def waiting(self) -> bool:
        """An answer waits for its receipt."""
        return self._delivery.waiting is not None

    @property
    def working(self) -> bool:
        return bool(self._question)

    def take(self, item: Item, now: float) -> None:
        self._now = now
        match item:
            case Arrived(topic, frame):
                self._arrived(topic, frame, now)
            case Connected(max_packet):
                self._connected(max_packet, now)
            case Disconnected(reason, final):
                log.warning("connection to the broker lost: %s", reason)
                self.connected, self._hello_at = False, float("inf")
                self._watchdog.stop()
                if final:
                    self._end(f"the broker ended the session: {reason}")
            case Denied(topic, reason):
                self._warn("the broker refused a message on %s: %s", topic, reason)
            case Done(call):
                call()
            case Stop(reason):
                self._leave(reason)
                self._end(reason)
        if self.draining and not (self.working or self.waiting or self.finished):
            self._leave(DisconnectReason.DRAINED.value)
            self._end("")

    def _connected(self, max_packet: int, now: float) -> None:
        try:
            self.link.adapt(max_packet, self._delivery.largest_object, forms.MANIFEST in self.link.peer_can)
        except BrokerError as error:
            self.link.reject_connection(error)
            return
        self.connected = True
        self._hellos.name_classes_in_full()
        self._watchdog.start(now)
        self._hello_timer.expect_frequent()
        self.link.say(self.link.topics.device_state(self.link.me.name), State(True), retain=True)
        self._hello()

    def drain(self) -> None:
        """End between two questions: when the answer in hand has its receipt."""
        self.draining, self._next = True, None

    @property
    def held(self) -> bool:
        return self.backoff.on_hold

    def hold(self, why: str) -> None:
        """Take no new work until `resume`; what is in hand is finished and delivered."""
        if not self.held:
            log.info("taking no new work: %s", why)
            self.backoff.hold()
            self._hello_at = float("inf")
            self._hello_timer.away()
            self.link.send(Bye(f"{DisconnectReason.PAUSED.value}: {why}"))

    def resume(self) -> None:
        if self.held:
            self.backoff.resume(self._now)
            self._hello_at = self._now
            self._welcomed_by = 0  # that hello asks for a welcome, which tells that it was heard

    def _leave(self, reason: str) -> None:
        self.link.send(Bye(reason))
        self.link.say(self.link.topics.device_state(self.link.me.name), State(False, reason), retain=True)

    def wake(self, now: float) -> None:
        self._now = now
        self.link.wake(now)
        self._watchdog.check(now)
        if now >= self._hello_at:
            self._hello()
        if now >= self._delivery.wake_at:
            self._delivery.say(self._plan_is_known, now)
        if now >= self._run_end.at:
            self._finish_run()

    def _arrived(self, topic: str, frame: bytes, now: float) -> None:
        try:
            for received in self.link.arrived(topic, frame, now):
                self._heard(received)
        except Rejected as fault:
            if isinstance(fault, NoRoom):  # the next hello brings the task again
                self.disk_space.short(str(fault))
            else:
                self._warn("rejected on %.100s: %s", topic, fault)
                if fault.reason is Reason.STALE_ROUND:
                    self._resend_last_answer()
        except (TakenOverError, *OURS):
            raise
        except Exception:  # in what one message said: the next hello brings what matters again
            self._notify("erred", round=self.state.last_round)
            if self._log_limit.take(self._now):
                log.exception("an error in handling a message on %.100s", topic)

    def _warn(self, message: str, *more: object) -> None:
        """Of what others cause: a flood of it fills no disk, and the counters have all of it."""
        if self._log_limit.take(self._now):
            log.warning(message, *more)

    def _resend_last_answer(self) -> None:
        """By a coordinator that began after our last answer: it goes on from an older copy, and has to know."""
        saved = self.state.saved
        if self.job is None or self._run != self.link.run:
            return  # what is saved is of another run
        if self.link.epoch > saved.epoch and saved.answers and not (self.waiting or self.working):
            self._deliver(saved.answers[-1])

    def _heard(self, received: Received) -> None:
        if received.run != self.link.run:
            return  # it waited for its broadcast, and its run is another's turn now
        forget_higher_epoch(self.state, self._heard_file, self.link.clock, received.epoch)
        self._plan_hello(received.message, received.epoch)
        self.heard |= not isinstance(received.message, State)  # which is said to nobody in particular
        self._watchdog.heard(self.link.news_at)
        if received.run != self._run:
            self._change_run(received.run)
        if not over(received.message):
            self._run_end.contradicted()
        if isinstance(received.message, (Welcome, Task, Receipt)):
            self._refusals.contradicted()
        match received.message:
            case Welcome(text, about):
                self._note_welcome(about, received.epoch)
                if lacks := [form for form in about.uses if form not in forms.DEVICE_FORMS]:
                    self._refuse_plan(
                        ValueError(f"it needs {', '.join(lacks)}; bring this device up to date")
                    )
                else:
                    self._welcomed(text, received.run, about.names)
            case Task() as task:
                self._asked(task, received)
            case Receipt() as receipt:
                self._receipted(receipt)
            case State(online=True, reason=reason) if reason != HERE:
                self._hello()
            case State(online=True, now=RoundStatus() as now) if self._is_missed(now):
                self._hello()
            case Refusal() as refusal:
                self._refusal(refusal)
            case message if over(message):
                self._hear_run_end(received.run)

    def _plan_hello(self, message: Message, epoch: int) -> None:
        """When to say hello again, now that something was heard."""
        self._hello_timer.coordinator_is(epoch)
        match message:
            case State(online=True, reason=reason, now=now) if reason == HERE:
                self._hello_timer.coordinator_here(now)
            case State():
                self._hello_timer.expect_frequent()
            case Welcome():
                self._hello_timer.welcomed()
        if self.connected:  # else it says hello as soon as it is
            self._hello_at = max(self._hello_timer.next_hello(self._now), self.backoff.until)

    def _is_missed(self, now: RoundStatus) -> bool:
        """Whether the coordinator waits for an answer to a question that has not come here, or for a hello."""
        if not now.names(self.link.me.name):
            return False
        known = {self.link.asked, self._working_on if self._question else None}
        if self._delivery.waiting:
            known.add(self._delivery.waiting.asked)
        if self._next and isinstance(self._next.message, Task):
            known.add((self._next.message.round, self._next.message.phase))
        return (now.round, now.phase) not in known

    def _change_run(self, run: str) -> None:
        """Nothing of another run is said, counted or learned in this one: not even what is being worked out.

        Two runs may have one plan, or one name.
        """
        self._run, self._working_on = run, (0, "")
        self._forget()
        self.link.forget_all()

    def _forget(self) -> None:
        self.plan = self.job = self._next = None
        self._delivery.cancel()
        self.link.least_round = 0
        self._hello_timer.expect_frequent()

    def _hello(self) -> None:
        if self._now < self.backoff.until:
            self._hello_at = self.backoff.until
            return
        plan = self.plan if self._plan_is_known else None  # another coordinator may know other forms
        self._hellos.send(plan)
        self._refusals.hello_sent(self.link.me.boot, self.link.last_sequence, self._now)
        self._hello_timer.hello_sent(self._now)
        self._hello_at = self._hello_timer.next_hello(self._now)

    @property
    def _plan_is_known(self) -> bool:
        """Whether this coordinator has said its plan, and all in hand is of its run."""
        return (self._welcomed_by, self._run) == (self.link.epoch, self.link.run)

    def _note_welcome(self, about: About, epoch: int) -> None:
        if epoch != self._welcomed_by:
            self._heard_file.note_time()
        self._welcomed_by = epoch
        self.link.peer_can, self.link.metric_names = frozenset(about.can), about.metrics

    def _welcomed(self, text: bytes, run: str, names: tuple[str, ...]) -> None:
        try:
            plan = plan_for(self.data, text, names)
        except SettingsError as error:
            self._refuse_plan(error)
            return
        if self.plan == plan and self.job is not None:
            self._hello()
            return
        if self.plan not in (None, plan):
            self._change_run(run)  # under the same name
        if not self._question:
            self._question = "plan"
            epoch = self.link.epoch
            self.worker.submit(
                lambda: self.runner.begin(plan, run, epoch), lambda job: self._ready(run, plan, job)
            )

    def _ready(self, run: str, plan: Plan, job: Job | Exception) -> None:
        if run != self._run:
            self._drop_result(job)
            return
        if isinstance(job, TrainerDiedError):
            self._trainer_died(job)
            return
        if isinstance(job, ValueError) and not isinstance(job, DamagedError):
            # This device's network does not go with the method or the images.
            self._refuse_plan(job)
            return
        if isinstance(job, Exception):
            self._work_failed(job)
            return
        self._forget()
        self.plan, self.job, self._question, self.idle = plan, job, "", False
        self.link.least_round = self.state.last_round
        self._hello()

    def _refuse_plan(self, error: ValueError) -> None:
        self.link.send(Bye(f"{DisconnectReason.CANNOT_FOLLOW.value}: {error}"))
        self._end(f"this device cannot follow the run's plan: {error}")

    def _asked(self, task: Task, received: Received) -> None:
        if self.plan is None or self.job is None:
            return  # a task for an earlier life of this process: the hello after the welcome brings it again
        question = question_of(received, task)
        if answer := self.state.answer_to(question):
            self._deliver(answer)
        elif self.draining or self._now < self.backoff.until:
            return
        elif self._question and self._question != question:
            self._next = received  # only the newest matters
        elif problem := self.state.cannot_answer(question):
            self._leave(f"{DisconnectReason.DAMAGED.value}: {problem}")
            self._end(problem)
        elif not self._question and self.disk_space.for_answer(received.object):
            self._question, self._working_on, self.idle = question, (task.round, task.phase), False
            job = self.job
            self._notify("started", round=task.round)
            self.worker.submit(
                lambda: self.runner.answer(job, received, question), partial(self._worked, job)
            )

    def _worked(self, job: Job, answer: Answer | Exception) -> None:
        if job is not self.job:
            self._drop_result(answer)
            return
        if isinstance(answer, TrainerDiedError):
            self._trainer_died(answer)
            return
        if isinstance(answer, Exception):
            self._work_failed(answer)
            return
        self.backoff.succeeded()
        self._question, self.link.least_round = "", self.state.last_round
        self._deliver(answer)
        self._notify("answered", round=answer.round, seconds=answer.metrics.get("seconds.work", 0.0))
        self.state.tidy(self.link.served | ({self._next.object} if self._next else set()))
        if self._next:
            received, self._next = self._next, None
            assert isinstance(received.message, Task)
            self._asked(received.message, received)

    def _drop_result(self, result: object) -> None:
        """Another run, or plan, has come in the meantime: on with that."""
        if isinstance(result, Exception):
            passing = isinstance(result, TrainerDiedError | ValueError) or is_full(result)
            if isinstance(result, DamagedError) or not passing:
                raise result
            log.warning("in work for another run: %s", result)
        log.info("what was worked on is for another run, or plan; it is dropped")
        self._question = ""
        self._hello()

    def _work_failed(self, error: Exception) -> None:
        """Without room for its answer a job is lost: as after a reboot, it is what the disk holds of it."""
        if not is_full(error):
            raise error
        self.disk_space.short(str(error))
        self._question = ""
        self._forget()

    def _trainer_died(self, death: TrainerDiedError) -> None:
        """The coordinator is told at once, so that nobody waits; after a pause the device asks for work again."""
        pause = self.backoff.begin(self._now)
        log.error("%s; asking for work again in %.0f s", death, pause)
        self._question, self._next, self._hello_at = "", None, self.backoff.until
        self.link.send(Bye(str(death)))
        self._hello_timer.away()
        self._forget()  # the job is in the middle of its work; the disk has what it was before
        self._notify("died", round=self.state.last_round)

    def _deliver(self, answer: Answer) -> None:
        self._delivery.begin(answer, self._now)
        self._delivery.say(self._plan_is_known, self._now)

    def _receipted(self, receipt: Receipt) -> None:
        if self._delivery.received(receipt):
            self.receipts[receipt.verdict] += 1
            self._keep_heard(lasting=False)
        if receipt.verdict == "refused":
            log.warning("round %d %s refused: %s", receipt.round, receipt.phase, receipt.reason)

    def _refusal(self, refusal: Refusal) -> None:
        """With a boot it says itself whether it is meant for this process."""
        self._keep_heard(lasting=True)
        boot = refusal.boot
        mine = self.link.me.boot
        counts = self.state.outranked(boot, mine) if boot else self._refusals.counts(refusal, self._now)
        if counts and refusal.answers and self._hellos.by_hash:
            self._hellos.name_classes_in_full()
            self._hello_at = self._now
        elif counts:
            self._end(f"the coordinator refuses this device: {printable(refusal.reason)}")
        elif not boot and not refusal.answers:
            self._hellos.name_classes_in_full()
            self._hello_at = max(self._refusals.ask_at, self._now)

    def _hear_run_end(self, run: str) -> None:
        """A session or a broker may have kept the word since another run."""
        known, over = self.state.saved.run, self._heard_file.last.over
        if self._run_end.heard(run, known, self.plan is not None, over, self._now):
            self._finish_run()

    def _finish_run(self) -> None:
        self._watchdog.stop()
        self._run_end.contradicted()
        self._heard_file.note_run_end(self.state.saved.run)
        self._delivery.cancel()
        self._next, self.idle = None, True
        self._hello_timer.away()
        self.link.send(Bye(DisconnectReason.FINISHED.value))
        if not self.stays:
            self._end(self.state.cannot_answer(""))

    def _end(self, problem: str) -> None:
        self._keep_heard(lasting=True)
        self.problem, self.finished = problem, True

    def _keep_heard(self, lasting: bool) -> None:
        self._heard_file.note_message(*self.link.last_heard(COORDINATOR), lasting)

    def _notify(self, what: str, **figures: float) -> None:
        for observer in self.observers:
            observer.happened(what, **figures)


def over(message: Message) -> bool:
    """Either word for the end of a run: the one said to this device may have been lost."""
    return isinstance(message, Finished) or message == State(False, "finished")
