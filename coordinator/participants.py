"""Who takes part in a run: what devices say of themselves, who is admitted by that, and who has left."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from protofleet.coordinator.context import ProcessContext
from protofleet.coordinator.devices.class_names import ClassNameVote
from protofleet.coordinator.devices.domains import assign_domain
from protofleet.coordinator.devices.hello_requests import HelloRequests
from protofleet.coordinator.devices.last_wills import LEFT, RETURNED, LastWills
from protofleet.coordinator.devices.limits import Limits, hello_problem
from protofleet.coordinator.observe.measured import names_of
from protofleet.coordinator.question import OpenQuestion
from protofleet.coordinator.round.events import Event, Joined, Left, Stage
from protofleet.coordinator.round.reader import MachineReader
from protofleet.coordinator.spool.older_copies import OlderCopyDetector
from protofleet.coordinator.spool.spool import Spool
from protofleet.methods.contract.base import Member
from protofleet.methods.contract.plan import Plan
from protofleet.protocol.link.base import Received
from protofleet.protocol.link.coordinator import refusal_of
from protofleet.protocol.wire import forms
from protofleet.protocol.wire.class_names import packed
from protofleet.protocol.wire.messages import MOST_NAMED, About, Hello, RoundStatus, Welcome, short_name
from protofleet.protocol.wire.reasons import Problem

log = logging.getLogger("protofleet.coordinator")


class Participants:
    def __init__(
        self, plan: Plan, context: ProcessContext, machine: MachineReader, spool: Spool, question: OpenQuestion,
        limits: Limits, class_names: tuple[str, ...], feature_size: int, happen: Callable[[Event], None],
    ) -> None:  # fmt: skip
        """`happen` is told who has joined and left."""
        self._plan, self._digest, self._context, self._link = plan, plan.digest, context, context.link
        self._machine, self._spool, self._question = machine, spool, question
        self._limits, self._happen = limits, happen
        self.members: dict[str, Member] = {}  # all that took part, also those that have left
        self.domains: dict[str, str] = {}
        patience, known = machine.policy.patience_seconds, lambda device: device in self._link.keyring
        self.name_vote = ClassNameVote(plan.classes, class_names, spool.class_names(), patience, known)
        self.older_copies = OlderCopyDetector(spool, patience, lambda: context.enrolled)
        self.last_wills = LastWills(machine.policy.grace_seconds)
        self._hello_requests = HelloRequests()
        self._unheard: set[str] = (
            set()
        )  # of an earlier coordinator's roster: their class names are not known yet
        self._hellos: dict[str, tuple[Hello, int, int]] = {}  # each device's last, with its boot and sequence
        self._needs_counts = plan.load().needs_counts
        self.measures = names_of(plan.variant.views)
        self._link.metric_names = tuple(sorted(self.measures))
        self._about = About(forms.COORDINATOR_FORMS, (), (), feature_size, self._link.metric_names)

    @property
    def wake_at(self) -> float:
        return min(self.last_wills.wake_at, self.older_copies.wake_at, self.name_vote.wake_at)

    def restore(self, members: Mapping[str, Member]) -> None:
        """As an earlier coordinator, or an earlier round, knew them; what was heard since counts more."""
        known = {**members, **self.members}
        self.members.clear()
        self.members.update(known)

    def resume(
        self, members: Mapping[str, Member], domains: Mapping[str, str], roster: Iterable[str]
    ) -> None:
        """As an earlier coordinator knew them; what each has called its classes is not written down."""
        self.restore(members)
        self.domains.update(domains)
        if not self.name_vote.is_as_saved:
            self._unheard.update(roster)

    def wake(self) -> None:
        self.name_vote.wake(self._context.now)
        self._judge_class_names_again()

    # What devices say.

    def greeted(self, received: Received, hello: Hello) -> None:
        if received.run != self._link.run:  # two runs may have one plan
            hello = replace(hello, plan=b"")
        self._hellos[hello.device] = (hello, received.boot, received.sequence)
        self._spool.check_claim()  # devices that have heard of a later coordinator do not answer this one
        if self.name_vote.is_open and received.epoch != self._link.epoch:
            self._greeted_an_earlier_coordinator(hello)
        else:
            self._greeted(hello)

    def _greeted(self, hello: Hello) -> None:
        device, now = hello.device, self._context.now
        self._hello_requests.discard(device)
        self._unheard.discard(device)
        if problem := self._hello_problem(hello) or self.name_vote.judge(hello, now):
            self._refuse(device, problem)
            if device in self._machine.roster:  # it was another one before
                self.leave(device, "it does not fit any more")
            return
        waits = self.name_vote.waits(device)
        if waits and device in self._machine.roster:  # as it said something else before
            self._link.abandon(device)
            self._happen(Left(device, "its classes have other names"))
        self._judge_class_names_again()
        if hello.names or hello.names_hash:
            self._drop_unheard()
        if not waits:
            self._admit(hello)

    def _greeted_an_earlier_coordinator(self, hello: Hello) -> None:
        """It has no vote on the class names, as a broker may have kept this hello since an earlier run. After the
        welcome the device says another one."""
        if problem := self._hello_problem(hello):
            self._refuse(hello.device, problem)
        else:
            self._hello_requests.add(hello.device, self._context.now)
            self._welcome(hello.device)

    def _admit(self, hello: Hello) -> None:
        device, now = hello.device, self._context.now
        self._link.device_forms[device] = frozenset(hello.can)
        if self._context.shutdown.begun and forms.BYE in hello.can:
            self._context.shutdown.wait_for(device)
        if hello.plan != self._digest or (self._needs_counts and not hello.counts):
            self._hello_requests.add(device, now)
            self._welcome(device)
            return
        self.members[device] = Member(device, hello.examples, hello.counts)
        assign_domain(device, hello.domain, self.domains, self._limits.domains)
        self._question.device_holds(device, hello.holds)
        self.older_copies.greeted(hello, self._link.last_heard(device)[0], self._machine.base, now)
        self._happen(Joined(device))

    def said_goodbye(self, device: str, reason: str) -> None:
        self.leave(device, reason)
        self._hello_requests.discard(device)

    def answered_no_question(self, device: str, round: int) -> None:
        """It may be to a round that this folder does not know. Before the device has said that it holds the plan of
        this run, it may be of an earlier one."""
        hello = self._hellos.get(device)
        if hello is not None and hello[0].plan == self._digest:
            self.older_copies.answered(device, round, self._context.now)

    # Who leaves.

    def leave(self, device: str, reason: str, since: float | None = None) -> None:
        if self._context.shutdown.begun:
            self._context.shutdown.confirmed(device)
            return
        self.last_wills.resolve(device, LEFT)
        self.name_vote.left(device)
        self._link.abandon(device)
        self._happen(Left(device, reason, since))

    def drop(self, device: str) -> None:
        """It is not listened to for a while, and nobody waits for it."""
        if device in {*self._machine.roster, *self._machine.cohort}:
            self.leave(device, "it is not listened to")
            self._hello_requests.add(device, self._context.now)

    def _drop_unheard(self) -> None:
        """Before the first device that says class names joins them: theirs may be others. Each says hello again."""
        for device in sorted(self._unheard & self._machine.roster):
            self.leave(device, "it has not said yet what its classes are called")
            self._hello_requests.add(device, self._context.now)
        self._unheard.clear()

    def listened_to_again(self, devices: Iterable[str]) -> None:
        """They answer a welcome with a hello; where that is lost, a `here` names them."""
        for device in sorted(device for device in devices if device in self._hello_requests):
            self._welcome(device)

    def drop_unfit(self) -> None:
        """They came when the messages were smaller."""
        for device in sorted(self._machine.roster & self._hellos.keys()):
            if problem := self._hello_problem(self._hellos[device][0]):
                self._refuse(device, problem)
                self.leave(device, "it does not fit any more")

    def drop_unenrolled(self) -> None:
        """Devices whose enrolment has ended since they joined are in no later cohort, and get no later key."""
        for device in sorted(self._machine.roster):
            if device not in self._link.keyring:
                log.warning("%s is not enrolled any more; it takes no further part", device)
                self._link.abandon(device)
                self._happen(Left(device))

    # Wills, which the broker says.

    def will_came(self, device: str) -> None:
        """A device that is there answers a welcome with a hello, whatever it is at."""
        known = device in self._machine.roster
        if known and self.last_wills.received(device, self._link.last_heard(device), self._context.now):
            self._welcome(device)

    def connected(self, device: str) -> None:
        if (since := self.last_wills.resolve(device, RETURNED)) is not None:
            self.leave(device, "connection lost", since)  # and here again: its hello follows
            self._hello_requests.add(device, self._context.now)

    def heard_from(self, device: str) -> None:
        """Anything that is new."""
        self.last_wills.heard_from(device, self._link.last_heard(device), self._context.now)

    def resolve_wills(self) -> None:
        now = self._context.now
        for device, since in self.last_wills.timed_out(now).items():
            self.leave(device, "connection lost", since)
            self._hello_requests.add(device, now)
        for device in self.last_wills.take_refuted(now):
            if self._context.peer_log.take(now):
                log.warning(
                    "the broker published the will of %s, which is still connected: its wills cannot be trusted",
                    device,
                )

    # What is said to them.

    def here(self) -> RoundStatus:
        """While devices are gathered everybody is waited for; after a question was asked, for a while nobody who was
        asked. The hellos of those that are missed are waited for all the time."""
        m, now, unheard = self._machine, self._context.now, self._context.bans.ignored
        early = self._context.here_timer.is_too_early_to_name(now)
        asked = m.asked if m.stage is Stage.COLLECTING else ""
        waited = set() if early else set(m.waited_for)
        if not early and (m.stage is Stage.GATHERING or len(waited) > MOST_NAMED):
            return RoundStatus(m.round, asked, m.attempt, None)
        waited.update(self._hello_requests.names(unheard, MOST_NAMED - len(waited), now))
        return RoundStatus(m.round, asked, m.attempt, tuple(sorted(map(short_name, waited))))

    def fix_class_names(self) -> None:
        self.name_vote.fix_if_decided()
        if self.name_vote.fixed and not self.name_vote.saved:
            self._spool.save_class_names(self.name_vote.fixed)
            self.name_vote.saved = True

    def _judge_class_names_again(self) -> None:
        """After what counts as the names of the classes may have become something else."""
        for hello in self.name_vote.outvoted():
            if hello.device in self._machine.roster:
                self.leave(hello.device, "its classes have other names")
                self.name_vote.hold(hello, self._context.now)
        for device, problem in self.name_vote.refused().items():
            self._refuse(device, problem)
        for hello in self.name_vote.released():
            with self._context.error_boundary.around(hello.device):
                self._admit(hello)

    def _hello_problem(self, hello: Hello) -> Problem | None:
        return hello_problem(hello, self._plan, self._limits, self._question.uses)

    def _welcome(self, device: str) -> None:
        names, can = self.name_vote.names, self._hellos[device][0].can if device in self._hellos else ()
        told = forms.NAMES in can and self._link.fits_in_message(packed(names))
        asked = self._needs_counts and forms.COUNTS in can
        uses = tuple(self._question.uses)
        about = replace(self._about, uses=uses, names=names if told else (), counts=asked)
        self._link.send(device, Welcome(self._plan.encode(), about))

    def _refuse(self, device: str, problem: Problem) -> None:
        if self._context.peer_log.take(self._context.now):
            log.warning("%s cannot take part: %s", device, problem.message)
        self._link.meter.rejected[problem.reason] += 1
        self._link.send(device, refusal_of(problem.message, *self._hellos[device]))
