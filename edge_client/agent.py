"""The device: same question, same answer; one training at a time, off the network thread.

It never decides when a round ends, and it believes nothing delivered until the coordinator says so.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Protocol

from protofleet.edge_client.conversation.coordinator_watchdog import CoordinatorWatchdog
from protofleet.edge_client.conversation.greeting import hello_of, plan_for
from protofleet.edge_client.conversation.hello_timer import HelloTimer
from protofleet.edge_client.conversation.outgoing import RESEND_SECONDS, Outgoing, question_of
from protofleet.edge_client.conversation.retry_backoff import RetryBackoff
from protofleet.edge_client.evaluate import Splits
from protofleet.edge_client.job_runner import JobRunner
from protofleet.edge_client.state.device import DeviceState, TakenOverError
from protofleet.edge_client.state.disk_space import DiskSpaceCheck
from protofleet.edge_client.state.file import Answer
from protofleet.edge_client.state.heard import HeardFile, RefusalCheck, RunEndCheck, taken_up, told_earlier
from protofleet.edge_client.trainer.errors import TrainerDiedError
from protofleet.edge_client.trainer.job import Job, StartJob
from protofleet.methods.contract.plan import Plan
from protofleet.protocol.link.base import Received
from protofleet.protocol.link.device import DeviceLink
from protofleet.protocol.link.rate_limit import Bucket
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.storage.disk import NoRoom, is_full
from protofleet.protocol.storage.store import DamagedError
from protofleet.protocol.transport.address import BrokerError
from protofleet.protocol.transport.base import Arrived, Connected, Denied, Disconnected, Done, Item, Stop
from protofleet.protocol.wire import forms
from protofleet.protocol.wire.class_names import packed
from protofleet.protocol.wire.messages import (
    HERE,
    About,
    Bye,
    Finished,
    Message,
    Now,
    Receipt,
    Refusal,
    State,
    Task,
    Welcome,
)
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.protocol.wire.plain import plain
from protofleet.protocol.wire.reasons import Farewell, Reason, Rejected
from protofleet.runtime.event_loop import Worker
from protofleet.runtime.faults import OURS

log = logging.getLogger("protofleet.device")


class Observer(Protocol):
    def happened(self, agent: Agent, what: str, **figures: float) -> None: ...


class Agent:
    def __init__(
        self, data: Splits, start_job: StartJob, link: DeviceLink, state: DeviceState, worker: Worker, *,
        software: str = "", stays: bool = False, observers: tuple[Observer, ...] = (),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        self.data, self.link, self.state, self.worker = data, link, state, worker
        self.software, self.stays, self.observers = software, stays, observers
        self.runner = JobRunner(start_job, state, data, lambda: link.block, clock)
        wall = link.clock.after(state.started_last)
        self._heard_before = HeardFile(state.folder, state.disk, wall, state.renewed)
        link.clock = self._heard_before.clock
        self._ending, self._refused, self._quiet = RunEndCheck(), RefusalCheck(), HelloTimer()
        conductor = link.keyring.get(COORDINATOR)
        holder = conductor.holder if conductor else ""
        self.link.epoch = taken_up(state, self._heard_before, link.clock, holder)
        mark = self._heard_before.mark
        self.link.remember({COORDINATOR: (mark.epoch, mark.sequence, holder)} if mark.epoch else {})
        self.job: Job | None = None
        self.plan: Plan | None = None
        self._run = state.saved.run  # of which was heard last; plan, job and answers in hand are of it
        self.finished = False
        self.problem = ""  # why, where it ended before the run did
        self.disk_space = DiskSpaceCheck(state)
        self.heard = self.draining = self.idle = False
        self.receipts: Counter[str] = Counter()  # of this process, by verdict
        self._rest = RetryBackoff(link.me.name)
        self.connected = False
        self._silence = CoordinatorWatchdog()
        self._words = Bucket(rate=1.0, burst=20.0)
        self._hello_at = float("inf")
        self._by_hash = False  # whether the last hello named the classes so, though it could have in full
        self._named_to = -1  # epoch of who was told all names of the classes on this connection
        self._told_by = 0  # epoch of the coordinator whose welcome was the last
        self._question, self._place = "", (0, "")  # being worked on, and its round and phase
        self._next: Received | None = None
        self._outgoing: Outgoing | None = None
        self._now = 0.0

    @property
    def wake_at(self) -> float:
        resend = self._outgoing.again_at if self._outgoing else float("inf")
        return min(self.link.wake_at, self._hello_at, resend, self._silence.alarm_at, self._ending.at)

    @property
    def silent(self) -> bool:
        """Connected, and the coordinator has said nothing new for long."""
        return self._silence.told

    @property
    def waiting(self) -> bool:
        """An answer waits for its receipt."""
        return self._outgoing is not None

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
                self._silence.ends()
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
            self._leave(Farewell.DRAINED.value)
            self._end("")

    def _connected(self, max_packet: int, now: float) -> None:
        try:
            waiting = bytes.fromhex(self._outgoing.answer.object) if self._outgoing else b""
            largest = self.link.store.size(waiting) if waiting else 0
            self.link.adapt(max_packet, largest, forms.MANIFEST in self.link.peer_can)
        except BrokerError as error:
            self.link.turn_down(error)
            return
        self.connected, self._named_to = True, -1
        self._silence.begins(now)
        self._quiet.begins()
        self.link.say(self.link.topics.device_state(self.link.me.name), State(True), retain=True)
        self._hello()

    def drain(self) -> None:
        """End between two questions: when the answer in hand has its receipt."""
        self.draining, self._next = True, None

    @property
    def held(self) -> bool:
        return self._rest.until == float("inf")

    def hold(self, why: str) -> None:
        """Take no new work until `resume`; what is in hand is finished and delivered."""
        if not self.held:
            log.info("taking no new work: %s", why)
            self._rest.until = self._hello_at = float("inf")
            self._quiet.leaves()
            self.link.send(Bye(f"{Farewell.PAUSED.value}: {why}"))

    def resume(self) -> None:
        if self.held:
            self._rest.until = self._hello_at = self._now
            self._told_by = 0  # that hello asks for a welcome, which tells that it was heard

    def _leave(self, reason: str) -> None:
        self.link.send(Bye(reason))
        self.link.say(self.link.topics.device_state(self.link.me.name), State(False, reason), retain=True)

    def wake(self, now: float) -> None:
        self._now = now
        self.link.wake(now)
        self._silence.look(now)
        if now >= self._hello_at:
            self._hello()
        if self._outgoing and now >= self._outgoing.again_at:
            self._say_answer(self._outgoing)
        if now >= self._ending.at:
            self._run_over()

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
                    self._asked_for_the_past()
        except (TakenOverError, *OURS):
            raise
        except Exception:  # in what one message said: the next hello brings what matters again
            self._notify("erred", round=self.state.last_round)
            if self._words.take(self._now):
                log.exception("an error in handling a message on %.100s", topic)

    def _warn(self, words: str, *more: object) -> None:
        """Of what others cause: a flood of it fills no disk, and the counters have all of it."""
        if self._words.take(self._now):
            log.warning(words, *more)

    def _asked_for_the_past(self) -> None:
        """By a coordinator that began after our last answer: it goes on from an older copy, and has to know."""
        saved = self.state.saved
        if self.job is None or self._run != self.link.run:
            return  # what is in the book is of another run
        if self.link.epoch > saved.epoch and saved.answers and self._outgoing is None and not self._question:
            self._outgoing = Outgoing(saved.answers[-1], self._now)
            self._say_answer(self._outgoing)

    def _heard(self, received: Received) -> None:
        if received.run != self.link.run:
            return  # it waited for its broadcast, and its run is another's turn now
        told_earlier(self.state, self._heard_before, self.link.clock, received.epoch)
        self._settle(received.message, received.epoch)
        self.heard |= not isinstance(received.message, State)  # which is said to nobody in particular
        self._silence.broken(self.link.news_at)
        if received.run != self._run:
            self._turn_to(received.run)
        if not over(received.message):
            self._ending.contradicted()
        if isinstance(received.message, (Welcome, Task, Receipt)):
            self._refused.contradicted()
        match received.message:
            case Welcome(text, about):
                self._told(about, received.epoch)
                if lacks := [form for form in about.uses if form not in forms.DEVICE_FORMS]:
                    self._cannot_follow(
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
            case State(online=True, now=Now() as place) if self._is_missed(place):
                self._hello()
            case Refusal() as refusal:
                self._refusal(refusal)
            case message if over(message):
                self._end_of(received.run)

    def _settle(self, message: Message, epoch: int) -> None:
        """When to say hello again, now that something was heard."""
        self._quiet.conducted_by(epoch)
        match message:
            case State(online=True, reason=reason, now=place) if reason == HERE:
                self._quiet.here(place)
            case State():
                self._quiet.begins()
            case Welcome():
                self._quiet.welcomed()
        if self.connected:  # else it says hello as soon as it is
            self._hello_at = max(self._quiet.next_hello(self._now), self._rest.until)

    def _is_missed(self, place: Now) -> bool:
        """Whether the coordinator waits for an answer to a question that has not come here, or for a hello."""
        if not place.names(self.link.me.name):
            return False
        known = {self.link.asked, self._place if self._question else None}
        if self._outgoing:
            known.add((self._outgoing.answer.round, self._outgoing.answer.phase))
        if self._next and isinstance(self._next.message, Task):
            known.add((self._next.message.round, self._next.message.phase))
        return (place.round, place.phase) not in known

    def _turn_to(self, run: str) -> None:
        """Nothing of another run is said, counted or learned in this one: not even what is being worked out.

        Two runs may have one plan, or one name.
        """
        self._run, self._place = run, (0, "")
        self._forget()
        self.link.forget_all()

    def _forget(self) -> None:
        self.plan = self.job = self._outgoing = self._next = None
        self.link.least_round = 0
        self._quiet.begins()

    def _hello(self) -> None:
        if self._now < self._rest.until:
            self._hello_at = self._rest.until
            return
        plan = self.plan if self._conducted else None  # another coordinator may know other forms
        names = self.data.names
        in_full = self._named_to != self.link.epoch and self.link.carries(packed(names))
        self._by_hash = bool(names) and not in_full and self.link.carries(packed(names))
        self.link.send(hello_of(self.link.me.name, self.software, self.data, plan, self.state.saved, in_full))
        self._named_to = self.link.epoch
        self._refused.hello_said(self.link.me.boot, self.link.said, self._now)
        self._quiet.hello_said(self._now)
        self._hello_at = self._quiet.next_hello(self._now)

    @property
    def _conducted(self) -> bool:
        """Whether this coordinator has said its plan, and all in hand is of its run."""
        return (self._told_by, self._run) == (self.link.epoch, self.link.run)

    def _told(self, about: About, epoch: int) -> None:
        if epoch != self._told_by:
            self._heard_before.note_time()
        self._told_by = epoch
        self.link.peer_can, self.link.metric_names = frozenset(about.can), about.metrics

    def _welcomed(self, text: bytes, run: str, names: tuple[str, ...]) -> None:
        try:
            plan = plan_for(self.data, text, names)
        except SettingsError as error:
            self._cannot_follow(error)
            return
        if self.plan == plan and self.job is not None:
            self._hello()
            return
        if self.plan not in (None, plan):
            self._turn_to(run)  # under the same name
        if not self._question:
            self._question = "plan"
            epoch = self.link.epoch
            self.worker.submit(
                lambda: self.runner.begin(plan, run, epoch), lambda job: self._ready(run, plan, job)
            )

    def _ready(self, run: str, plan: Plan, job: Job | Exception) -> None:
        if run != self._run:
            self._done_for_nobody(job)
            return
        if isinstance(job, TrainerDiedError):
            self._trainer_died(job)
            return
        if isinstance(job, ValueError) and not isinstance(job, DamagedError):
            # This device's network does not go with the method or the images.
            self._cannot_follow(job)
            return
        if isinstance(job, Exception):
            self._not_done(job)
            return
        self._forget()
        self.plan, self.job, self._question, self.idle = plan, job, "", False
        self.link.least_round = self.state.last_round
        self._hello()

    def _cannot_follow(self, error: ValueError) -> None:
        self.link.send(Bye(f"{Farewell.CANNOT_FOLLOW.value}: {error}"))
        self._end(f"this device cannot follow the run's plan: {error}")

    def _asked(self, task: Task, received: Received) -> None:
        if self.plan is None or self.job is None:
            return  # a task for an earlier life of this process: the hello after the welcome brings it again
        question = question_of(received, task)
        if answer := self.state.answer_to(question):
            self._outgoing = Outgoing(answer, self._now)
            self._say_answer(self._outgoing)
        elif self.draining or self._now < self._rest.until:
            return
        elif self._question and self._question != question:
            self._next = received  # only the newest matters
        elif words := self.state.contradicted(question):
            self._leave(f"{Farewell.DAMAGED.value}: {words}")
            self._end(words)
        elif not self._question and self.disk_space.for_answer(received.object):
            self._question, self._place, self.idle = question, (task.round, task.phase), False
            job = self.job
            self._notify("started", round=task.round)
            self.worker.submit(
                lambda: self.runner.answer(job, received, question), partial(self._worked, job)
            )

    def _worked(self, job: Job, answer: Answer | Exception) -> None:
        if job is not self.job:
            self._done_for_nobody(answer)
            return
        if isinstance(answer, TrainerDiedError):
            self._trainer_died(answer)
            return
        if isinstance(answer, Exception):
            self._not_done(answer)
            return
        self._rest.over()
        self._question, self.link.least_round = "", self.state.last_round
        self._outgoing = Outgoing(answer, self._now)
        self._say_answer(self._outgoing)
        self._notify("answered", round=answer.round, seconds=answer.metrics.get("seconds.work", 0.0))
        self.state.tidy(self.link.served | ({self._next.object} if self._next else set()))
        if self._next:
            received, self._next = self._next, None
            assert isinstance(received.message, Task)
            self._asked(received.message, received)

    def _done_for_nobody(self, result: object) -> None:
        """Another run, or plan, has come in the meantime: on with that."""
        if isinstance(result, Exception):
            passing = isinstance(result, TrainerDiedError | ValueError) or is_full(result)
            if isinstance(result, DamagedError) or not passing:
                raise result
            log.warning("in work for another run: %s", result)
        log.info("what was worked on is for another run, or plan; it is dropped")
        self._question = ""
        self._hello()

    def _not_done(self, error: Exception) -> None:
        """Without room for its answer a job is lost: as after a reboot, it is what the disk holds of it."""
        if not is_full(error):
            raise error
        self.disk_space.short(str(error))
        self._question = ""
        self._forget()

    def _trainer_died(self, death: TrainerDiedError) -> None:
        """The coordinator is told at once, so that nobody waits; after a pause the device asks for work again."""
        pause = self._rest.begin(self._now)
        log.error("%s; asking for work again in %.0f s", death, pause)
        self._question, self._next, self._hello_at = "", None, self._rest.until
        self.link.send(Bye(str(death)))
        self._quiet.leaves()
        self._forget()  # the job is in the middle of its work; the disk has what it was before
        self._notify("died", round=self.state.last_round)

    def _say_answer(self, outgoing: Outgoing) -> None:
        if not self._conducted:
            outgoing.again_at = (
                self._now + RESEND_SECONDS
            )  # it may be of another run, or plan, under the same name
            return
        a = outgoing.answer
        log.info("round %d %s: answer %s", a.round, a.phase, a.object)
        try:
            self.link.send_update(outgoing.update(self.link.me.name), bytes.fromhex(a.object))
        except BrokerError as error:
            self.link.turn_down(error)
        outgoing.said(self._now)

    def _receipted(self, receipt: Receipt) -> None:
        waiting = self._outgoing
        if waiting and (waiting.answer.round, waiting.answer.phase) == (receipt.round, receipt.phase):
            self.link.forget(bytes.fromhex(waiting.answer.object))
            self._outgoing = None
            self.receipts[receipt.verdict] += 1
            self._keep_heard(lasting=False)
        if receipt.verdict == "refused":
            log.warning("round %d %s refused: %s", receipt.round, receipt.phase, receipt.reason)

    def _refusal(self, refusal: Refusal) -> None:
        """With a boot it says itself whether it is meant for this process."""
        self._keep_heard(lasting=True)
        boot = refusal.boot
        mine = self.link.me.boot
        counts = self.state.outranked(boot, mine) if boot else self._refused.counts(refusal, self._now)
        if counts and refusal.answers and self._by_hash:
            self._named_to, self._hello_at = (
                -1,
                self._now,
            )  # it may be for the names, and then shows both lists
        elif counts:
            self._end(f"the coordinator refuses this device: {plain(refusal.reason)}")
        elif not boot and not refusal.answers:
            self._named_to = -1  # what follows may be refused for the names, and then shows both lists
            self._hello_at = max(self._refused.ask_at, self._now)

    def _end_of(self, run: str) -> None:
        """A session or a broker may have kept the word since another run."""
        known, over = self.state.saved.run, self._heard_before.mark.over
        if self._ending.heard(run, known, self.plan is not None, over, self._now):
            self._run_over()

    def _run_over(self) -> None:
        self._silence.ends()
        self._ending.contradicted()
        self._heard_before.end_of(self.state.saved.run)
        self._outgoing, self._next, self.idle = None, None, True
        self._quiet.leaves()
        self.link.send(Bye(Farewell.FINISHED.value))
        if not self.stays:
            self._end(self.state.contradicted(""))

    def _end(self, problem: str) -> None:
        self._keep_heard(lasting=True)
        self.problem, self.finished = problem, True

    def _keep_heard(self, lasting: bool) -> None:
        self._heard_before.up_to(*self.link.heard_of(COORDINATOR), lasting)

    def _notify(self, what: str, **figures: float) -> None:
        for watcher in self.observers:
            watcher.happened(self, what, **figures)


def over(message: Message) -> bool:
    """Either word for the end of a run: the one said to this device may have been lost."""
    return isinstance(message, Finished) or message == State(False, "finished")
