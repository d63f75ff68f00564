"""The shell around the machine: it decodes, times and performs. It decides nothing."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Protocol

from coordinator.events import (
    Accept,
    Advance,
    Advanced,
    Answered,
    Close,
    Command,
    Dismiss,
    Drop,
    Event,
    Finish,
    Joined,
    Left,
    Repeat,
    Rollback,
    Save,
    Send,
    Woke,
)
from coordinator.machine import Phase, RoundMachine
from coordinator.spool import Accepted, Spool
from coordinator.story import Step, Story
from methods.base import Ask, Member
from methods.bridge import LazyPayload
from methods.plan import Plan
from methods.wants import most_bytes
from protocol.coordinator_link import CoordinatorLink
from protocol.link import Received
from protocol.messages import Bye, Finished, Hello, Manifest, Receipt, Refusal, State, Task, Update, Welcome
from protocol.party import Worker
from protocol.reasons import Rejected
from protocol.transport import Arrived, Connected, Denied, Disconnected, Done, Item, Stop

log = logging.getLogger("protofleet.coordinator")

MAX_EXAMPLES = 1 << 40


class Watcher(Protocol):
    """Told of everything after it is decided: ledger, metrics, progress. It influences nothing."""

    def happened(self, service: Service, event: Event, commands: Sequence[Command], now: float) -> None: ...

    def answered(self, service: Service, update: Update, now: float) -> None: ...

    def stepped(self, service: Service, step: Step, now: float) -> None: ...


class Service:
    def __init__(
        self,
        plan: Plan,
        machine: RoundMachine,
        spool: Spool,
        worker: Worker,
        link: Callable[[Service], CoordinatorLink],
        watchers: Sequence[Watcher] = (),
    ) -> None:
        self.plan, self.machine, self.spool, self.worker = plan, machine, spool, worker
        self.link = link(self)
        self.watchers = list(watchers)
        self.story = Story(plan, spool, machine.policy.rounds)
        self.members: dict[str, Member] = {}
        self.domains: dict[str, str] = {}
        self.finished = False
        self.stopped = ""  # why, where it ended before the run did
        self.ask: Ask | None = None
        self._broadcast: Manifest | None = None  # what the open ask stands on
        self._now, self._resumed = 0.0, False
        self._most = 0  # bytes that an answer to the open ask may have
        self._needs_counts = plan.load().needs_counts
        self._digest = plan.digest
        self._holders: defaultdict[bytes, set[str]] = defaultdict(set)
        self._fetched: dict[str, Accepted] = {}

    @property
    def wake_at(self) -> float:
        return min(self.link.wake_at, self.machine.wake_at or float("inf"))

    def _resume(self, now: float) -> None:
        """Take up the round in which an earlier coordinator died, if there is one.

        Not before the first connection: a replay must cut its broadcasts as the broker's limits demand.
        """
        self._resumed = True
        if remembered := self.spool.recover():
            past, self.members = remembered
            log.info("resuming in round %d, attempt %d", past.round, past.attempt)
            self._perform_all(self.machine.resume(past), now)

    def take(self, item: Item, now: float) -> None:
        self._now = now
        match item:
            case Arrived(topic, frame):
                self._arrived(topic, frame, now)
            case Connected(max_packet):
                self.link.adapt(max_packet)
                self._announce(State(True))
                if not self._resumed:
                    self._resume(now)
            case Disconnected(reason, final):
                log.warning("connection to the broker lost: %s", reason)
                if final:
                    self.stopped, self.finished = f"the broker ended the session: {reason}", True
            case Denied(topic, reason):
                log.warning("the broker refused a message on %s: %s", topic, reason)
            case Done(call):
                call()
            case Stop(reason):
                self.stopped, self.finished = reason, True
                self._announce(State(False, reason))

    def wake(self, now: float) -> None:
        self._now = now
        self.link.wake(now)
        if self.machine.wake_at is not None and now >= self.machine.wake_at:
            self.happen(Woke(), now)

    def happen(self, event: Event, now: float) -> None:
        commands = self.machine.handle(event, now)
        self._perform_all(commands, now)
        for watcher in self.watchers:
            watcher.happened(self, event, commands, now)

    # What the link asks: is this answer worth fetching?

    def admit(self, update: Update, size: int) -> bool:
        m = self.machine
        expected = (m.round, m.asked, m.base)
        open_to_it = m.phase is Phase.COLLECTING and (update.round, update.phase, update.base) == expected
        problem = None
        if open_to_it and size > self._most:
            problem = f"{size} bytes, at most {self._most} were asked for"
        elif open_to_it and not 0 <= update.examples <= MAX_EXAMPLES:
            problem = f"{update.examples} examples"
        elif open_to_it and update.device in m.cohort and update.device not in m.answered:
            return True
        self.happen(Answered(update.device, update.round, update.phase, update.base, problem), self._now)
        return False

    def spoiled(self, update: Update, fault: Rejected) -> None:
        place = (update.device, update.round, update.phase, update.base)
        self.happen(Answered(*place, problem=str(fault)), self._now)

    def _arrived(self, topic: str, frame: bytes, now: float) -> None:
        try:
            for received in self.link.arrived(topic, frame, now):
                self._heard(received, now)
        except Rejected as fault:
            log.warning("rejected on %s: %s", topic, fault)

    def _heard(self, received: Received, now: float) -> None:
        match received.message:
            case Hello() as hello:
                self._greeted(hello, now)
            case State(online=False) | Bye():
                self.link.abandon(received.sender)
                self.happen(Left(received.sender), now)
            case Update() as update:
                self._answered(update, received.object, now)

    def _greeted(self, hello: Hello, now: float) -> None:
        if problem := self._cannot_join(hello):
            log.warning("%s cannot take part: %s", hello.device, problem)
            self.link.send(hello.device, Refusal(problem))
            return
        if hello.plan != self._digest or (self._needs_counts and not hello.counts):
            self.link.send(hello.device, Welcome(self.plan.encode()))
            return
        self.members[hello.device] = Member(hello.device, hello.examples, hello.counts)
        self.domains[hello.device] = hello.domain or hello.device
        for name in hello.holds:
            self._holders[name].add(hello.device)
        self.happen(Joined(hello.device), now)

    def _cannot_join(self, hello: Hello) -> str | None:
        low, high = hello.protocol
        if not low <= 1 <= high:
            return f"it speaks protocol {low} to {high}, this coordinator speaks 1"
        if hello.classes != self.plan.classes:
            return f"it has {hello.classes} classes, this run has {self.plan.classes}"
        if hello.counts and len(hello.counts) != self.plan.classes:
            return f"it states counts of {len(hello.counts)} classes, this run has {self.plan.classes}"
        return None

    def _answered(self, update: Update, name: bytes, now: float) -> None:
        problem = self.ask.problem_with(LazyPayload(update.arrays)) if self.ask else "nothing was asked"
        if problem is None:
            self._fetched[update.device] = Accepted(
                update.device, update.base, name, update.examples, update.metrics
            )
        for watcher in self.watchers:
            watcher.answered(self, update, now)
        self.happen(Answered(update.device, update.round, update.phase, update.base, problem), now)

    def _perform_all(self, commands: Sequence[Command], now: float) -> None:
        for command in commands:
            self._perform(command, now)

    def _perform(self, command: Command, now: float) -> None:
        match command:
            case Save(round, attempt, cohort):
                members = {d: self.members[d] for d in sorted({*cohort, *self.machine.roster})}
                self.spool.save(round, attempt, cohort, members, self.story.state())
            case Rollback():
                self.spool.rollback(self.machine.round)
                self.story.restore()
            case Advance():
                self._advance(command)
            case Close(round, phase, devices):
                self.spool.close(round, phase, devices)
            case Accept(device, round, phase):
                self.spool.accept(round, phase, self._fetched.pop(device))
                self._holders[self.machine.base].add(device)
                self.link.send(device, Receipt(round, phase, "accepted"))
            case Repeat(device, round, phase):
                self.link.send(device, Receipt(round, phase, "accepted"))
            case Drop(device, round, phase, verdict, reason):
                self._fetched.pop(device, None)
                self.link.send(device, Receipt(round, phase, verdict, reason))
            case Send(device, round, phase, seconds):
                self.link.send(device, Task(round, phase, self._broadcast, seconds))
            case Dismiss(device):
                self.link.send(device, Finished(self.machine.policy.rounds))
            case Finish():
                self._announce(State(False, "finished"))
                self.finished = True

    def _advance(self, advance: Advance) -> None:
        self.link.abandon()
        self.ask, self._broadcast = None, None
        members = [self.members[d] for d in self.machine.cohort]
        answers = self.spool.answers(advance.round, advance.phase) if advance.phase else {}
        block = self.link.block
        self.worker.submit(lambda: self.story.step(advance, members, answers, block), self._stepped)

    def _stepped(self, step: Step | Exception) -> None:
        if isinstance(step, Exception):
            raise step
        manifest, self.ask = step.manifest, step.ask
        if step.ask is not None:
            self._most = most_bytes(step.ask.wants)
        if manifest is not None:
            self._broadcast = manifest
            cohort, holders = list(self.machine.cohort), self._holders[manifest.object]
            self.link.offer(manifest, self.spool.broadcasts, cohort, holders)
            self.spool.broadcasts.keep({manifest.object})
            self._holders = defaultdict(set, {manifest.object: self._holders[manifest.object]})
        for watcher in self.watchers:
            watcher.stepped(self, step, self._now)
        base = manifest.object if manifest else b""
        self.happen(Advanced(step.ask.phase if step.ask else None, base), self._now)

    def _announce(self, state: State) -> None:
        self.link.say(self.link.topics.coord_state, state, retain=True)
