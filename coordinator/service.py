"""The shell around the machine: it decodes, times and performs. It decides nothing."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from protofleet.coordinator.command_queue import Backlog
from protofleet.coordinator.devices.bans import Bans
from protofleet.coordinator.devices.class_names import ClassNameVote
from protofleet.coordinator.devices.departures import Departures
from protofleet.coordinator.devices.domains import settle
from protofleet.coordinator.devices.error_boundary import ErrorBoundary
from protofleet.coordinator.devices.hello_requests import HelloRequests
from protofleet.coordinator.devices.last_wills import LEFT, RETURNED, LastWills
from protofleet.coordinator.devices.limits import Limits, unfit
from protofleet.coordinator.devices.small_packets import SmallPackets
from protofleet.coordinator.devices.undelivered import Undelivered
from protofleet.coordinator.gate.door import Door
from protofleet.coordinator.gate.intake import Intake
from protofleet.coordinator.here import Here
from protofleet.coordinator.observe.aside import Aside
from protofleet.coordinator.observe.measured import counted, names_of
from protofleet.coordinator.observe.view import Watcher
from protofleet.coordinator.parting import Parting
from protofleet.coordinator.round.events import (
    Accept,
    Advance,
    Advanced,
    Blame,
    Blamed,
    Close,
    Command,
    Dismiss,
    Diverge,
    Drop,
    Event,
    Finish,
    Forget,
    Joined,
    Left,
    PutAside,
    Recovered,
    Repeat,
    Rollback,
    Save,
    Send,
    Stage,
    Woke,
)
from protofleet.coordinator.round.machine import RoundMachine
from protofleet.coordinator.server.culprits import FailedRound
from protofleet.coordinator.server.runner import ServerRunner, Step
from protofleet.coordinator.spool.epochs import file_of
from protofleet.coordinator.spool.older_copies import OlderCopyDetector
from protofleet.coordinator.spool.spool import Accepted, SavedRound, Spool
from protofleet.methods.contract.base import Ask, Member
from protofleet.methods.contract.bridge import LazyPayload, to_numpy
from protofleet.methods.contract.plan import Plan
from protofleet.methods.contract.wants import table_of
from protofleet.protocol.link.base import Received
from protofleet.protocol.link.coordinator import CoordinatorLink, refusal_of
from protofleet.protocol.link.rate_limit import STRANGER, Bucket
from protofleet.protocol.storage.disk import NoRoom, is_full
from protofleet.protocol.transport.address import BrokerError
from protofleet.protocol.transport.base import Arrived, Connected, Denied, Disconnected, Done, Item, Stop
from protofleet.protocol.wire import forms
from protofleet.protocol.wire.arrays import parts
from protofleet.protocol.wire.class_names import packed
from protofleet.protocol.wire.codec import MAX_HOLDS
from protofleet.protocol.wire.messages import (
    HERE,
    MOST_NAMED,
    About,
    Bye,
    Finished,
    Hello,
    Manifest,
    Now,
    Offer,
    Receipt,
    State,
    Task,
    Update,
    Wanted,
    Welcome,
    objects_of,
    short_name,
)
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.protocol.wire.plain import plain
from protofleet.protocol.wire.reasons import Problem, Reason, Rejected
from protofleet.runtime.event_loop import Worker

log = logging.getLogger("protofleet.coordinator")

WAITS: Final = (Stage.GATHERING, Stage.COLLECTING)


class Service:
    def __init__(
        self, plan: Plan, machine: RoundMachine, spool: Spool, worker: Worker,
        link: CoordinatorLink, watchers: Sequence[Watcher] = (), limits: Limits | None = None,
        class_names: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self.plan, self.machine, self.spool, self.worker = plan, machine, spool, worker
        self.door = Door(self)
        self.now = 0.0
        self.bans = Bans(spool.folder, spool.disk)
        self.error_boundary = ErrorBoundary(
            self.bans, lambda: self.now, lambda name: self.link.admission.who(name)
        )
        self.link: CoordinatorLink = link
        self.link.admission_controller = self.door
        self.link.remember(spool.heard())
        self.link.alone, self.link.admission.flooded = self.error_boundary.around, self._flooded
        self.watchers, self.limits = list(watchers), limits or Limits()
        self.aside = Aside(lambda: self.now)
        self.intake = Intake(self.limits, spool, self.link)
        self.older_copies = OlderCopyDetector(spool, machine.policy.patience_seconds, self._enrolled)
        self.server_runner = ServerRunner(plan, spool, machine.policy.rounds, self.limits.outlier)
        self.members: dict[str, Member] = {}
        self.departures, self.parting = Departures(), Parting()
        self.last_wills = LastWills(machine.policy.grace_seconds)
        self.small_packets = SmallPackets(machine.policy.quorum)
        patience, known = machine.policy.patience_seconds, lambda device: device in self.link.keyring
        self.name_vote = ClassNameVote(plan.classes, class_names, spool.called(), patience, known)
        self.domains: dict[str, str] = {}
        self.finished = False
        self.diverged = ""  # why, where the run has come to nothing
        self.connected = False
        self.stopped = ""  # why, where it ended before the run did
        self.ask: Ask | None = None
        self._broadcast: Offer | None = None  # what the open ask stands on
        self.uses: dict[str, str] = {}  # forms without which no device can take part, and why
        self._rows: tuple[Wanted, ...] = ()  # what answers to the open ask must hold, for who asks to be told
        self._max_packet, self._carried = 0, math.inf  # of this broker, and the largest object asked of it
        self._too_large: Step | None = None  # its broadcast goes through no broker that there was since
        self._resumed = False
        self._here, self._hello_requests = Here(), HelloRequests()
        self._undelivered = Undelivered()
        self._needs_counts = plan.load().needs_counts
        self.measures = names_of(plan.variant.views)
        self.link.metric_names = tuple(sorted(self.measures))
        self._about = About(
            forms.COORDINATOR_FORMS,
            (),
            (),
            self.server_runner.server.model.embedding_size,
            self.link.metric_names,
        )
        self._digest = plan.digest
        self._said: dict[str, tuple[Hello, int, int]] = {}  # by device its last hello, with boot and sequence
        self._holds: dict[str, tuple[bytes, ...]] = {}  # what each device has said that it has, or had since
        self._fetched: dict[str, Accepted] = {}
        self._advancing: Advance | None = None  # what the worker is at
        self.backlog = Backlog(spool, self.perform)
        self._words = Bucket(rate=1.0, burst=20.0)

    @property
    def wake_at(self) -> float:
        machine = self.machine.wake_at or float("inf")
        parts = (
            self.link,
            self.backlog,
            self.bans,
            self.last_wills,
            self.older_copies,
            self.name_vote,
            self.parting,
        )
        return min(*(part.wake_at for part in parts), machine, self._here.wake_at)

    def _resume(self, now: float) -> None:
        """Take up the round in which an earlier coordinator died, if there is one.

        Not before the first connection: a replay must cut its broadcasts as the broker's limits demand.
        """
        self._resumed = True
        self.older_copies.begins(now)
        if remembered := self.spool.recover():
            (past, self.members), self.domains = remembered, self.spool.domains()
            log.info("resuming in round %d, attempt %d", past.round, past.attempt)
            damaged = [Forget()] if self.spool.damaged else []
            self.backlog.add([*damaged, *self.machine.resume(past)], now)
            for device in self.bans.ignored:  # they were there when it was saved
                self.error_boundary.exclude(device)

    def take(self, item: Item, now: float) -> None:
        self.now = now
        self._take(item, now)
        self._part_from_the_unheard()
        self.link.flush(now)
        self.finished |= self.parting.over(now)

    def unwanted(self, topic: str) -> bool:
        """Whether what comes there is dropped unseen. Any thread may ask."""
        if not self.bans.ignored or topic == self.link.topics.coord_state:
            return False
        name = self.link.writer(topic)
        if self.bans.drops(name):
            return True
        return STRANGER in self.bans.ignored and self.bans.drops(self.link.admission.who(name))

    def _take(self, item: Item, now: float) -> None:
        match item:
            case Arrived(topic, frame) if not self.unwanted(topic):
                with self.error_boundary.around(self.link.writer(topic)):
                    self._arrived(topic, frame, now)
            case Connected(max_packet):
                self.spool.check_claim()
                if not self._fits(max_packet):
                    return
                self.connected = True
                self._hear()
                if self.parting.begun:
                    self._announce(State(False, "finished"))
                    return
                self._announce(State(True, who=self.link.who))
                self._here.connected(now)
                if not self._resumed:
                    self._resume(now)
                if grown := self._too_large:
                    self._too_large = None
                    self._stepped(grown)
            case Disconnected(reason, final):
                log.warning("connection to the broker lost: %s", reason)
                self.connected = False
                self._here.ends()
                if final:
                    self._stop(f"the broker ended the session: {reason}")
            case Denied(topic, reason):
                place = self.link.topics.parse(topic)
                to_all = place is not None and place.kind in ("bcast", "now")
                self._undelivered.denied(
                    self.machine.waited_for if to_all else [place.device] if place else []
                )
                if self._words.take(now):
                    log.warning("the broker refused a message on %s: %s", topic, reason)
            case Done(call):
                call()
            case Stop(reason):
                if not self.parting.begun:
                    self._announce(State(False, reason))
                self._stop(reason)

    def _stop(self, why: str) -> None:
        """Whoever ends it while it takes leave ends a run that is over."""
        self.stopped, self.finished = "" if self.parting.begun else why, True

    def wake(self, now: float) -> None:
        self.now = now
        self.link.wake(now)
        if now >= self._here.wake_at:
            self.link.say(self.link.topics.coord_state, State(True, HERE, self.link.who, self._place(now)))
            self._here.said(now)
            if not self.backlog.full:
                self.spool.note_crossed()
        for device in self.parting.to_tell_again(now):
            self.link.send(device, Finished(self.machine.policy.rounds))
        if words := self.older_copies.verdict({*self.machine.roster, *self.machine.cohort}, now):
            self.stopped, self.finished = words, True
            self._announce(State(False, words))
        self.name_vote.wake(now)
        self._sort_out(now)
        self.backlog.wake(now)
        self._settle_doubts(now)
        if now >= self.bans.wake_at:
            unheard = self.bans.ignored
            self.link.dropped(self.bans.refresh(now))
            self._hear()
            self._call_back(unheard - self.bans.ignored)
        if self.machine.wake_at is not None and now >= self.machine.wake_at:
            self.happen(Woke(), now)
        self._part_from_the_unheard()
        self.link.flush(now)
        self.finished |= self.parting.over(now)

    def _place(self, now: float) -> Now:
        """While devices are gathered everybody is waited for; after a question was put, for a while nobody who was
        asked. For hellos of those who are missed it waits all the time."""
        m, early = self.machine, self._here.too_early(now)
        asked = m.asked if m.stage is Stage.COLLECTING else ""
        waited = set() if early else set(m.waited_for)
        if not early and (m.stage is Stage.GATHERING or len(waited) > MOST_NAMED):
            return Now(m.round, asked, m.attempt, None)
        waited.update(self._hello_requests.names(self.bans.ignored, MOST_NAMED - len(waited), now))
        return Now(m.round, asked, m.attempt, tuple(sorted(map(short_name, waited))))

    def _enrolled(self) -> int:
        return sum(device != COORDINATOR for device in self.link.keyring)

    def _flooded(self, who: str) -> None:
        if who in self.bans.ignored:
            return
        if who:
            self.bans.ban(who, self.now)
        else:
            seconds = self.bans.pause(who, self.now)
            log.warning("names without a key flood: nothing of them is read for %.0f s", seconds)
        self.error_boundary.exclude(who)

    def _part_from_the_unheard(self) -> None:
        """Nobody waits for them: not in what was going on when they were cut off, but after it."""
        for device in self.error_boundary.take_excluded():
            self.link.abandon(device, for_good=True)
            if device in {*self.machine.roster, *self.machine.cohort}:
                self._gone(device, "it is not listened to")
                self._hello_requests.add(device, self.now)
            self._hear()

    def _call_back(self, devices: frozenset[str]) -> None:
        """Who is listened to again. It answers a welcome with a hello; where that is lost, a `here` names it."""
        for device in sorted(device for device in devices if device in self._hello_requests):
            self._welcome(device)

    def _hear(self) -> None:
        """Also of devices that were enrolled while somebody is not listened to."""
        if self.connected:
            self.link.hear(self.bans.ignored)

    def happen(self, event: Event, now: float) -> None:
        before = self.machine.stage
        commands = self.machine.handle(event, now)
        if self.connected and (self.machine.stage is not before or isinstance(event, Advanced)):
            self._here.asked(now) if self.machine.stage in WAITS else self._here.nobody()
        # What a round has come to is written down before the Save that leaves it behind, or a crash would lose it.
        ended = isinstance(event, Advanced) and event.phase is None
        if not ended:
            self.backlog.add(commands, now)
        self._tell(lambda watcher: watcher.happened(self, event, commands, now))
        if ended:
            self.backlog.add(commands, now)

    def _arrived(self, topic: str, frame: bytes, now: float) -> None:
        try:
            for received in self.link.arrived(topic, frame, now):
                self._heard(received, now)
            if self.last_wills:
                self._is_there(topic)
        except Rejected as fault:
            if isinstance(fault, NoRoom):
                self.backlog.no_room(str(fault))
            elif self._words.take(now):  # a flood fills no disk with words; the counters have all of it
                log.warning("rejected on %.100r: %s", topic, fault)

    def _heard(self, received: Received, now: float) -> None:
        match received.message:
            case State() if received.sender == COORDINATOR:
                self._outranked(received)
            case Hello() as hello:
                self.departures.greeted(received, self.link.heard_of(hello.device)[1])
                if received.run != self.link.run:  # two runs may have one plan
                    hello = replace(hello, plan=b"")
                self._said[hello.device] = (hello, received.boot, received.sequence)
                if self.name_vote.is_open and received.epoch != self.link.epoch:
                    self._greeted_another(hello)
                else:
                    self._greeted(hello, now)
            case State(online=False) if received.sequence == 0 and not self.parting.begun:
                self._doubt(received.sender, now)
            case State(online=True):
                if (since := self.last_wills.settle(received.sender, RETURNED)) is not None:
                    self._gone(received.sender, "connection lost", since)  # and here again: its hello follows
                    self._hello_requests.add(received.sender, now)
            case State(online=False) | Bye() if self._is_stale(received):
                pass
            case State(online=False, reason=reason) | Bye(reason):
                if isinstance(received.message, Bye):
                    may_log = self._words.take(now)
                    self.departures.left(received.sender, reason, may_log, run_is_over=self.parting.begun)
                self._gone(received.sender, reason)
                self._hello_requests.discard(received.sender)
            case Update() as update:
                self._answered(update, received.object, now)

    def _is_stale(self, leave: Received) -> bool:
        return self.departures.is_stale(leave, self.link.heard_of(leave.sender)[1])

    def _gone(self, device: str, reason: str, since: float | None = None) -> None:
        if self.parting.begun:
            self.parting.gone(device)
            return
        self.last_wills.settle(device, LEFT)
        self.name_vote.left(device)
        self.link.abandon(device)
        self.happen(Left(device, reason, since), self.now)

    def _doubt(self, device: str, now: float) -> None:
        """A device that is there answers a welcome with a hello, whatever it is at."""
        known = device in self.machine.roster
        if known and self.last_wills.received(device, self.link.heard_of(device), now):
            self._welcome(device)

    def _welcome(self, device: str) -> None:
        names, can = self.name_vote.names, self._said[device][0].can if device in self._said else ()
        told = forms.NAMES in can and self.link.carries(packed(names))
        asked = self._needs_counts and forms.COUNTS in can
        about = replace(self._about, names=names if told else (), counts=asked)
        self.link.send(device, Welcome(self.plan.encode(), about))

    def _is_there(self, topic: str) -> None:
        place = self.link.topics.parse(topic)
        device = place.device if place else ""
        self.last_wills.heard_from(device, self.link.heard_of(device), self.now)

    def _settle_doubts(self, now: float) -> None:
        for device, since in self.last_wills.timed_out(now).items():
            self._gone(device, "connection lost", since)
            self._hello_requests.add(device, now)
        for device in self.last_wills.take_refuted(now):
            if self._words.take(now):
                log.warning(
                    "the will of %s was said, but it is there: the broker says wills that are not due", device
                )

    def _outranked(self, later: Received) -> None:
        """Of two coordinators the later one goes on. This one says nothing more: nobody listens to it."""
        mine, theirs = self.link.epoch, f"epoch {later.epoch} and run {later.run or '?'}"
        known = file_of(self.spool.folder.parents[1], self.link.topics.federation)
        who = later.message.who if isinstance(later.message, State) else ""
        said = f"; the other is {plain(who)}" if who else ""
        if later.epoch == mine:
            self.stopped = (
                f"another coordinator of this federation was started in the same second and goes on with {theirs}; "
                f"only one may run{said}"
            )
            self.finished = True
            return
        self.stopped = (
            f"a later coordinator conducts this federation: it has {theirs}, this one has epoch {mine}; only one may "
            f"run{said}. Where there is no other, a clock was ahead: write "
            f"{later.epoch} into {known} and start again"
        )
        self.finished = True

    def _greeted(self, hello: Hello, now: float) -> None:
        self.spool.check_claim()  # devices that have heard of a later coordinator do not answer this one
        self._hello_requests.discard(hello.device)
        if problem := unfit(hello, self.plan, self.limits, self.uses) or self.name_vote.judge(hello, now):
            self._refuse(hello.device, problem)
            if hello.device in self.machine.roster:  # it was another one before
                self._gone(hello.device, "it does not fit any more")
            return
        waits = self.name_vote.waits(hello.device)
        if waits and hello.device in self.machine.roster:  # as it said something else before
            self.link.abandon(hello.device)
            self.happen(Left(hello.device, "its classes have other names"), now)
        self._sort_out(now)
        if not waits:
            self._admit(hello, now)

    def _greeted_another(self, hello: Hello) -> None:
        """Who has not heard of this coordinator yet votes for nothing, as a broker may have kept this hello since an
        earlier run. After the welcome it says another one."""
        self.spool.check_claim()
        if problem := unfit(hello, self.plan, self.limits, self.uses):
            self._refuse(hello.device, problem)
        else:
            self._hello_requests.add(hello.device, self.now)
            self._welcome(hello.device)

    def _admit(self, hello: Hello, now: float) -> None:
        self.link.can[hello.device] = frozenset(hello.can)
        if self.parting.begun and forms.BYE in hello.can:
            self.parting.came(hello.device)
        if hello.plan != self._digest or (self._needs_counts and not hello.counts):
            self._hello_requests.add(hello.device, now)
            self._welcome(hello.device)
            return
        self.members[hello.device] = Member(hello.device, hello.examples, hello.counts)
        settle(hello.device, hello.domain, self.domains, self.limits.domains)
        self._holds[hello.device] = hello.holds
        self.older_copies.greeted(hello, self.link.heard_of(hello.device)[0], self.machine.base, now)
        self.happen(Joined(hello.device), now)

    def takes_part(self, device: str) -> bool:
        """Whether it has told this process that it holds the plan of this very run."""
        said = self._said.get(device)
        return said is not None and said[0].plan == self._digest

    def _refuse(self, device: str, problem: Problem) -> None:
        if self._words.take(self.now):
            log.warning("%s cannot take part: %s", device, problem.words)
        self.link.meter.rejected[problem.reason] += 1
        self.link.send(device, refusal_of(problem.words, *self._said[device]))

    def _sort_out(self, now: float) -> None:
        """After what counts as the names of the classes may have become something else."""
        for hello in self.name_vote.outvoted():
            if hello.device in self.machine.roster:
                self._gone(hello.device, "its classes have other names")
                self.name_vote.hold(hello, now)
        for device, problem in self.name_vote.refused().items():
            self._refuse(device, problem)
        for hello in self.name_vote.released():
            with self.error_boundary.around(hello.device):
                self._admit(hello, now)

    def _answered(self, update: Update, name: bytes, now: float) -> None:
        assert self.ask is not None, "an answer is fetched only while something is asked"
        self.intake.came(update.device)
        examples = self.members[update.device].examples
        if problem := self.ask.problem_with(LazyPayload(update.arrays), examples, self.limits.norm):
            self.spool.refuse(update.device, name)
            self.door.refuse(update, problem)
            return
        update = replace(update, metrics=counted(update.metrics, self.measures))
        self._fetched[update.device] = Accepted(
            update.device, update.base, name, update.examples, update.metrics
        )
        self._tell(lambda watcher: watcher.answered(self, update, now))
        self.door.judged(update, None)

    def perform(self, command: Command) -> None:
        """Again from its beginning, where it raises because the disk is full."""
        try:
            self._carry_out(command)
        except Exception as error:
            if not (is_full(error, self.spool.folder) and self.link.has_unfinished):
                raise
            self.link.abandon()  # what is half here is offered again, and what is written now the round stands on
            self._carry_out(command)

    def _carry_out(self, command: Command) -> None:
        match command:
            case Save(round, attempt, cohort):
                self._settle_names()
                members = {d: self.members[d] for d in sorted({*cohort, *self.machine.roster})}
                roster, domains = self.machine.roster, self.domains
                self.spool.save(round, attempt, cohort, members, self.server_runner.state(), roster, domains)
            case Forget():
                self.spool.forget_damaged()
            case Rollback(why, missing):
                why += self._undelivered.describe(missing, self.connected)
                log.warning("round %d begins again: %s", self.machine.round, why)
                self.spool.rollback(self.machine.round)
                self.server_runner.restore()
            case Advance():
                self._advance(command)
            case Blame():
                self._blame(command)
            case PutAside(round, phase, devices, aside, words):
                log.error(
                    "back to round %d, which is repeated without the answer of %s: %s",
                    round, ", ".join(aside), words,
                )  # fmt: skip
                self.spool.put_aside(round, phase, devices, aside, words)
                self.server_runner.restore()
                self.link.meter.rejected[Reason.OUT_OF_BOUNDS] += len(aside)
            case Diverge(round, words):
                self.spool.diverge(round, words)
                self.diverged = words
                self._take_leave()
            case Close(round, phase, devices):
                self.spool.close(round, phase, devices)
            case Accept(device, round, phase):
                heard, holder = self.link.heard_of(device), self.link.holder_of(device)
                self.spool.accept(round, phase, self._fetched[device], heard, holder)
                own = self._fetched.pop(device).object  # what comes of one answer may be that answer
                self._holds[device] = (*self._holds.get(device, ())[: MAX_HOLDS - 2], self.machine.base, own)
                self.link.admission.frame_was_useful(device)
                self.link.send(device, Receipt(round, phase, "accepted"))
            case Repeat(device, round, phase, problem):
                verdict, words = ("refused", problem.words) if problem else ("accepted", "")
                self.link.send(device, Receipt(round, phase, verdict, words))
            case Drop(device, round, phase, verdict, problem):
                self._fetched.pop(device, None)
                self.link.meter.rejected[problem.reason] += 1
                self.link.send(device, Receipt(round, phase, verdict, problem.words))
            case Send(device, round, phase, seconds):
                self._send_task(device, round, phase, seconds)
            case Dismiss(device):
                self.link.send(device, Finished(self.machine.policy.rounds))
            case Finish():
                self._take_leave()

    def _take_leave(self) -> None:
        self._announce(State(False, "finished"))
        self._here.ends()
        told = {device for device in self.machine.roster if forms.BYE in self.link.can.get(device, ())}
        self.parting.begins(told, self.now)

    def _fits(self, max_packet: int) -> bool:
        """What this broker's packets demand of devices, found before anybody is asked anything.

        What is open was cut for another one, maybe, whose packets were larger.
        """
        self._max_packet = max_packet
        arrays = to_numpy(self.server_runner.server.payload())
        size = sum(n for _, n in parts(arrays)) if arrays else 0
        waiting = self._too_large.manifest if self._too_large else None
        if not self._carries(max([size, *(offer.size for offer in (self._broadcast, waiting) if offer)])):
            return False
        if self._broadcast is not None and not self.link.can_still_serve:
            self._offer(self.spool.broadcasts.manifest(self._broadcast.object, self.link.block))
        return True

    def _carries(self, size: int) -> bool:
        """Whether an object of this size goes through this broker; else another connection is waited for."""
        boxes = self.small_packets.manifests_may_be_objects(self.machine.roster, self.link.can, self.now)
        try:
            self.link.adapt(self._max_packet, size, boxes)
        except BrokerError as error:
            self.small_packets.broker_refused(self.now)
            self.link.turn_down(error)
            return False
        self.small_packets.broker_accepted()
        self._carried, self.uses = size, self.link.demands(size)
        self._about = replace(self._about, uses=tuple(self.uses))
        self._part_from_the_unable()
        return True

    def _part_from_the_unable(self) -> None:
        """They came when what had to be said was smaller."""
        for device in sorted(self.machine.roster & self._said.keys()):
            if problem := unfit(self._said[device][0], self.plan, self.limits, self.uses):
                self._refuse(device, problem)
                self._gone(device, "it does not fit any more")

    def _offer(self, manifest: Manifest) -> None:
        holders = {device for device, names in self._holds.items() if manifest.object in names}
        cohort = list(self.machine.cohort)
        self._broadcast = self.link.offer(manifest, self.spool.broadcasts, cohort, holders)
        self.spool.broadcasts.keep(objects_of(self._broadcast))

    def _settle_names(self) -> None:
        self.name_vote.settle()
        if self.name_vote.fixed and not self.name_vote.saved:
            self.spool.keep_names(self.name_vote.fixed)
            self.name_vote.saved = True

    def _send_task(self, device: str, round: int, phase: str, seconds: float) -> None:
        told = forms.WANTS in self.link.can.get(device, ()) and self.ask is not None
        rows = self._rows if told else ()
        holds = self._broadcast is not None and self._broadcast.object in self._holds.get(device, ())
        self._undelivered.sent(device, self.connected)
        self.link.task(device, Task(round, phase, self._broadcast, seconds, rows), holds)

    def _part_from_the_unknown(self) -> None:
        """Devices whose enrolment has ended since they joined are in no later cohort, and get no later key."""
        for device in sorted(self.machine.roster):
            if device not in self.link.keyring:
                log.warning("%s is not known any more; it takes no further part", device)
                self.link.abandon(device)
                self.happen(Left(device), self.now)

    def _advance(self, advance: Advance) -> None:
        self.link.abandon()
        self.ask, self._broadcast, self._advancing = None, None, advance
        members = [self.members[d] for d in self.machine.cohort]
        answers = self.spool.answers(advance.round, advance.phase) if advance.phase else {}
        block = self.link.block
        self.worker.submit(lambda: self.server_runner.step(advance, members, answers, block), self._stepped)

    def _blame(self, blame: Blame) -> None:
        trial, past = None, Recovered(blame.round, 0, ())
        if kept := self.spool.generation(blame.round):
            if self.spool.damaged:
                self.spool.forget_damaged()
            past = kept.past
            self.members = {**kept.members, **self.members}  # also of who has left before this process began
            trial = self._trial(kept)

        def blamed(found: Blamed | Exception) -> None:
            if isinstance(found, Exception):
                raise found
            self.happen(found, self.now)

        self.worker.submit(lambda: self.server_runner.blamed(past, blame, trial), blamed)

    def _trial(self, kept: SavedRound) -> FailedRound:
        past, in_hand = kept.past, kept.past.round == self.machine.round
        known = {phase: self.spool.answers(past.round, phase) for phase in past.closed}
        closed = {
            phase: {d: known[phase][d] for d in devices if d in known[phase]}
            for phase, devices in past.closed.items()
        }
        members = [self.members[d] for d in past.cohort]
        then = None if in_hand else [self.members[d] for d in self.machine.cohort]
        return FailedRound(past.round, kept.state, members, closed, then, in_hand)

    def _stepped(self, step: Step | Exception) -> None:
        if isinstance(step, Exception):
            if not is_full(step) or self._advancing is None:
                raise step
            self.backlog.again(self._advancing, step, self.now)
            return
        self.spool.check_claim()
        manifest = step.manifest
        if manifest is not None and manifest.size > self._carried and not self._carries(manifest.size):
            self._too_large = step
            return
        self.ask = step.ask
        if step.ask is not None:
            self.intake.open(step.ask, len(self.machine.cohort))
            self._rows = table_of(step.ask.wants, step.ask.payload, self.limits.norm)
        if manifest is not None:
            self._offer(manifest)
        for device, words in step.aside.items():
            log.warning(
                "round %d %s: the answer of %s is put aside: %s", step.round, step.phase, device, words
            )
            self.link.meter.rejected[Reason.OUT_OF_BOUNDS] += 1
        self._tell(lambda watcher: watcher.stepped(self, step, self.now))
        self._part_from_the_unknown()
        base = manifest.object if manifest else b""
        self.happen(Advanced(step.ask.phase if step.ask else None, base, step.fault), self.now)

    def _tell(self, what: Callable[[Watcher], None]) -> None:
        for watcher in self.watchers:
            self.aside.call(partial(what, watcher))

    def _announce(self, state: State) -> None:
        self.link.say(self.link.topics.coord_state, state, retain=True)
