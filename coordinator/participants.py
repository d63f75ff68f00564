"""The devices that take part in a run: their hellos, their admission, and their leaving."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final

from protofleet.coordinator.context import ProcessContext
from protofleet.coordinator.devices.class_names import ClassNameVote
from protofleet.coordinator.devices.domains import assign_domain, claim_problem
from protofleet.coordinator.devices.hello_requests import HelloRequests
from protofleet.coordinator.devices.last_wills import LEFT, RETURNED, LastWills
from protofleet.coordinator.devices.limits import CoordinatorLimits, hello_problem
from protofleet.coordinator.devices.misfits import Misfits
from protofleet.coordinator.devices.selection import SelectedDevices
from protofleet.coordinator.enrolments import AnswerEnrolments
from protofleet.coordinator.observe.measured import names_of
from protofleet.coordinator.question import OpenQuestion
from protofleet.coordinator.queue.generation import Generation
from protofleet.coordinator.round.events import Deselected, Event, Joined, Left, Stage, Unenrolled
from protofleet.coordinator.round.reader import MachineReader
from protofleet.coordinator.run_times import RunTimes
from protofleet.coordinator.spool.older_copies import OlderCopyDetector
from protofleet.coordinator.spool.spool import Spool
from protofleet.methods.contract.base import Member
from protofleet.methods.contract.plan import Plan
from protofleet.protocol.link.base import Received
from protofleet.protocol.link.coordinator_run import CoordinatorRunLink
from protofleet.protocol.link.to_devices import refusal_of
from protofleet.protocol.security.keys import has_ended, why_unknown
from protofleet.protocol.settings.named_codecs import written_codec
from protofleet.protocol.wire import forms
from protofleet.protocol.wire.class_names import digest_of, packed
from protofleet.protocol.wire.messages import MOST_NAMED, About, Hello, RoundStatus, Welcome, short_name
from protofleet.protocol.wire.reasons import Problem, Reason
from protofleet.runtime.host.machine import parts_of

log = logging.getLogger("protofleet.coordinator")

# Largest number of characters that are stored from the software description of a device.
MOST_SOFTWARE: Final = 300
# Seconds between two checks that test whether the devices for which the run waits are still enrolled.
ENROLMENT_SECONDS: Final = 5.0


class Participants:
    def __init__(
        self, plan: Plan, context: ProcessContext, link: CoordinatorRunLink, times: RunTimes, machine: MachineReader,
        spool: Spool, question: OpenQuestion, limits: CoordinatorLimits, class_names: tuple[str, ...],
        feature_size: int, happen: Callable[[Event], None], enrolments: AnswerEnrolments, selection: SelectedDevices,
        generation: Generation | None = None,
    ) -> None:  # fmt: skip
        """Set up an empty roster; `happen` receives an event when a device joins or leaves."""
        self._plan, self._digest, self._context, self._link = plan, plan.digest, context, link
        self._machine, self._spool, self._question = machine, spool, question
        self._limits, self._happen, self._enrolments = limits, happen, enrolments
        self._times, self._selection = times, selection
        self._generation = generation or Generation(link.run)
        # Device -> the name on the wire of an earlier generation of the run, in the newest hello of the device.
        self._has_earlier: dict[str, str] = {}
        # All devices that have taken part in the run, by name. Devices that have left are included.
        self.members: dict[str, Member] = {}
        self.domains: dict[str, str] = {}
        self.on_refusal: Callable[[str, str], None] = lambda device, reason: None
        # The software and the machine of each device, as the device describes them.
        self.software: dict[str, str] = {}
        patience, known = machine.policy.patience_seconds, lambda device: device in self._link.party.keyring
        self.name_vote = ClassNameVote(plan.classes, class_names, spool.class_names(), patience, known)
        self.older_copies = OlderCopyDetector(
            spool, patience, lambda: selection.count(context.enrolled_devices)
        )
        self.last_wills = LastWills(machine.policy.grace_seconds)
        self.misfits = Misfits()
        self._hello_requests = HelloRequests()
        # Devices from the roster of an earlier coordinator that have not yet sent their class names to this
        # coordinator.
        self._names_unknown: set[str] = set()
        # The last hello of each device, with its boot and sequence number.
        self._hellos: dict[str, tuple[Hello, int, int]] = {}
        # The boot of each device at its last hello with a plan that named this run. A device that does not have the
        # run names it in a hello without a plan, when a task of the run arrives.
        self._named_by: dict[str, int] = {}
        self._needs_counts = plan.states_counts
        self._needs_domains = plan.variant.domains is not None
        self._enrolment_due = 0.0
        self.measures = names_of(plan.variant.views, plan.metrics())
        self._link.metric_names, self._link.kinds = tuple(sorted(self.measures)), plan.kinds
        left_out = set() if plan.classes <= limits.confusion else {forms.CONFUSION}
        can = tuple(form for form in forms.COORDINATOR_FORMS if form not in left_out)
        kinds = plan.variant.kinds.declared
        self._lossless = written_codec(plan.lossless, kinds) if plan.lossless else b""
        self._about = About(can, (), (), feature_size, self._link.metric_names)

    @property
    def wake_at(self) -> float:
        waits = self._machine.waited_for or self._machine.left_to_ask
        enrolment = self._enrolment_due if waits else float("inf")
        return min(self.last_wills.wake_at, self.older_copies.wake_at, self.name_vote.wake_at, enrolment)

    def restore(self, members: Mapping[str, Member]) -> None:
        """Add members from an earlier coordinator or round, except devices that are known already.

        A known device has sent a hello to this coordinator, and that hello is newer.
        """
        known = {**members, **self.members}
        self.members.clear()
        self.members.update(known)

    def awaits_hello_of(self, device: str) -> bool:
        return device in self._hello_requests

    def may_lack(self, device: str, boot: int) -> bool:
        """Return whether a device in this boot may not have the run, so that a welcome is due.

        A device that was killed after its welcome, or has lost its disk, does not have the run any more. It is a
        member as before, but no hello of this boot has named the run with a plan.
        """
        named = self._named_by.get(device) == boot
        return not named and not self._hello_requests.is_new(device, self._context.now)

    def resume(
        self, members: Mapping[str, Member], domains: Mapping[str, str], roster: Iterable[str]
    ) -> None:
        """Take over the state of an earlier coordinator.

        This state does not contain the class names of each device.
        """
        self.restore(members)
        self.domains.update(domains)
        if not self.name_vote.is_as_saved:
            self._names_unknown.update(roster)

    def wake(self) -> None:
        now = self._context.now
        if now >= self._enrolment_due:
            self._enrolment_due = now + ENROLMENT_SECONDS
            self._drop_unenrolled({*self._machine.waited_for, *self._machine.left_to_ask})
        self.name_vote.wake(now)
        self._apply_class_name_vote()

    # Methods for messages of devices.

    def hello_received(self, received: Received, hello: Hello, refuses: bool = True) -> None:
        """Handle a hello. If `refuses` is false, a device that the run does not select gets no reply."""
        # The hello was sent to a coordinator of another run. That run may have the same plan as this run. So the plan
        # in the hello does not show that the device belongs to this run.
        self._has_earlier.pop(hello.device, None)
        if received.run in self._generation.earlier:
            self._has_earlier[hello.device] = received.run
        if received.run != self._link.run:
            hello = replace(hello, plan=b"")
        elif hello.plan:
            self._named_by[hello.device] = received.boot
        before = self._hellos.get(hello.device)
        self._hellos[hello.device] = (hello, received.boot, received.sequence)
        self._spool.check_claim()  # devices ignore a replaced coordinator, so do not reply
        if self._leaves_out(hello, refuses):
            return
        if before is not None and before[1] == received.boot and self._says_nothing_new(before[0], hello):
            return
        if self.name_vote.is_open and received.epoch != self._link.party.epoch:
            self._handle_hello_to_earlier_coordinator(hello)
        else:
            self._handle_hello(hello)

    def may_join(self, hello: Hello) -> bool:
        return self._not_selected(hello) is None and self._has_place_for(hello.device)

    def _leaves_out(self, hello: Hello, refuses: bool) -> bool:
        """Return whether the device of this hello does not take part now; a device may wait for a place."""
        device = hello.device
        problem = self._not_selected(hello)
        if problem is None:
            return not self._has_place_for(device)
        if device in self._machine.roster:
            self.remove(device, "the run does not select it any more")
        if refuses:
            log.info("%s cannot take part: %s", device, problem.message)
            self._send_refusal(device, problem)
        return True

    def _not_selected(self, hello: Hello) -> Problem | None:
        """Return why the run does not select the device. A device of the open round takes part until its end."""
        problem, m = self._selection.problem_with(hello), self._machine
        is_open = m.stage not in (Stage.GATHERING, Stage.FINISHED)
        return None if is_open and hello.device in m.cohort else problem

    def _has_place_for(self, device: str) -> bool:
        """Return whether the device has one of the places of select.most, or one is free."""
        if not (most := self._selection.settings.most):
            return True
        taken = {*self._machine.roster, *self._machine.cohort, *self._hello_requests}
        return device in taken or len(taken) < most

    def _says_nothing_new(self, before: Hello, hello: Hello) -> bool:
        """Return whether the hello can be ignored because it contains nothing new.

        This is the case if the device already takes part, and the coordinator needs nothing from the hello.
        Most hellos of an idle fleet are of this kind.
        """
        device = hello.device
        return (
            hello.plan == self._digest
            and self._machine.counts_on(device)
            and with_names_as_hash(before) == with_names_as_hash(hello)
            and not self.name_vote.is_open
            and device not in self._hello_requests
            and not self.older_copies.holds_unknown(device)
        )

    def _handle_hello(self, hello: Hello) -> None:
        device, now = hello.device, self._context.now
        self._hello_requests.discard(device)
        self._names_unknown.discard(device)
        if problem := self._hello_problem(hello) or self.name_vote.judge(hello, now):
            self._refuse(device, problem)
            if device in self._machine.roster:  # An earlier hello of this device was accepted.
                self.remove(device, "it does not fit any more")
            return
        waits = self.name_vote.waits(device)
        # The device may have joined with other class names in an earlier hello. Now it must wait for the vote.
        if waits and device in self._machine.roster:
            self._link.answers.abandon(device)
            self._happen(Left(device, "its classes have other names"))
        self._apply_class_name_vote()
        if hello.names or hello.names_hash:
            self._drop_devices_without_names()
        if not waits:
            self._admit(hello)

    def _handle_hello_to_earlier_coordinator(self, hello: Hello) -> None:
        """Welcome the device, but do not count the class names of its hello as a vote.

        A broker may have stored this hello since an earlier run. The device replies to the welcome with a new
        hello.
        """
        if problem := self._hello_problem(hello):
            self._refuse(hello.device, problem)
        else:
            self._hello_requests.add(hello.device, self._context.now)
            self._welcome(hello.device)

    def _admit(self, hello: Hello) -> None:
        device, now = hello.device, self._context.now
        if hello.plan == self._digest:
            self.misfits.fits(device)
        self._link.party.device_forms[device] = frozenset(hello.can)
        self._note_software(device, hello.software)
        if self._times.shutdown.begun and forms.BYE in hello.can:
            self._times.shutdown.wait_for(device)
        if hello.plan != self._digest or (self._needs_counts and not hello.counts):
            self._hello_requests.add(device, now)
            self._welcome(device)
            return
        assign_domain(device, hello.domain, self.domains, self._limits.domains)
        self.members[device] = Member(device, hello.examples, hello.counts, self.domains[device])
        self._question.device_holds(device, hello.holds)
        self.older_copies.hello_received(
            hello, self._link.party.last_heard(device)[0], self._machine.base, now
        )
        anew = device in self._machine.kept and not self._enrolments.valid([device], self._machine.round)
        self._happen(Joined(device, anew))

    def _note_software(self, device: str, said: str) -> None:
        """Store the description of a device's software and machine.

        Only the first hello of a connection also describes the machine. A later description without the
        machine does not replace a description with the machine.
        """
        if parts_of(said)["machine"] or device not in self.software:
            self.software[device] = said[:MOST_SOFTWARE]

    def bye_received(self, device: str, reason: str) -> None:
        if device in self._hellos:
            self.misfits.left(device, self._hellos[device][1], reason)
        self.remove(device, reason)
        self._hello_requests.discard(device)

    def unasked_answer_received(self, device: str, round: int) -> None:
        """Record an update for a task that is not open. The update may show that this folder is an older copy.

        Nothing is recorded until the device has sent a hello with the plan of this run. Before this hello, the
        update may belong to an earlier run.
        """
        hello = self._hellos.get(device)
        if hello is not None and hello[0].plan == self._digest:
            self.older_copies.answered(device, round, self._context.now)

    # Methods for devices that leave.

    def remove(self, device: str, reason: str, since: float | None = None) -> None:
        if self._times.shutdown.begun:
            self._times.shutdown.confirmed(device)
            return
        self.last_wills.resolve(device, LEFT)
        self.name_vote.left(device)
        self._link.answers.abandon(device)
        self._happen(Left(device, reason, since))

    def ignore(self, device: str) -> None:
        """Remove a device whose messages are ignored for a while, so that the run does not wait for the device."""
        if device in {*self._machine.roster, *self._machine.cohort}:
            self.remove(device, "its messages are ignored")
            self._hello_requests.add(device, self._context.now)

    def _drop_devices_without_names(self) -> None:
        """Remove the devices whose class names are unknown, and request a new hello from each of them.

        This happens before the first device with known class names joins, because the removed devices may
        have other class names.
        """
        for device in sorted(self._names_unknown & self._machine.roster):
            self.remove(device, "it has not sent its class names yet")
            self._hello_requests.add(device, self._context.now)
        self._names_unknown.clear()

    def stop_ignoring(self, devices: Iterable[str]) -> None:
        """Send a welcome to devices that are not ignored any more, if the coordinator still needs a hello from them.

        A device replies to the welcome with a hello. If the welcome or the hello is lost, a later `here`
        names the device.
        """
        for device in sorted(device for device in devices if device in self._hello_requests):
            self._welcome(device)

    def drop_unfit(self) -> None:
        """Remove devices that cannot read the messages of this run.

        A device that could take part when it joined may be unable to do so later. The messages of the run may
        have become larger than the broker's limit, and are then sent in a newer form.
        """
        for device in sorted(self._machine.roster & self._hellos.keys()):
            if problem := self._hello_problem(self._hellos[device][0]):
                self._refuse(device, problem)
                self.remove(device, "it does not fit any more")

    def drop_unenrolled(self) -> None:
        """Remove the devices whose enrolment has ended since they joined.

        A removed device is in no later cohort and receives no later keys.
        """
        self._drop_unenrolled(self._machine.roster)

    def _drop_unenrolled(self, devices: Iterable[str]) -> None:
        for device in sorted(devices):
            if reason := why_unknown(self._link.party.keyring, device):
                log.warning(
                    "%s is not enrolled any more: %s; the run does not wait for this device, and the device takes no "
                    "further part in the run",
                    device,
                    reason,
                )
                self._link.answers.abandon(device)
                self._happen(Unenrolled(device, reason))
            elif device in self._machine.roster and self._was_enrolled_again(device):
                self.remove(device, "it was enrolled again and has not joined since")

    def _was_enrolled_again(self, device: str) -> bool:
        """Return whether the newest message of the device belongs to an enrolment that has ended."""
        return has_ended(self._link.party.keyring, device, self._link.party.holder_of(device))

    def drop_unselected(self, kept: Collection[str] = ()) -> None:
        """Remove the devices that the run does not select any more.

        The devices in `kept` stay until the end of the open round, but a repetition of the round does not ask them.
        A removed device keeps its state of the run. It joins again if the run selects it again.
        """
        for device in sorted(self._machine.roster):
            if self._selection.selects(device):
                continue
            if device in kept:
                self._happen(Deselected(device))
            else:
                log.info("the run does not select %s any more", device)
                self.remove(device, "the run does not select it any more")

    # Methods for the MQTT wills of devices, which the broker publishes.

    def will_received(self, device: str) -> None:
        """Send a welcome to a device after its MQTT will, to find out whether the device is still connected.

        A connected device always replies to a welcome with a hello.
        """
        known = device in self._machine.roster
        if known and self.last_wills.received(device, self._link.party.last_heard(device), self._context.now):
            self._welcome(device)

    def connected(self, device: str) -> None:
        if (since := self.last_wills.resolve(device, RETURNED)) is not None:
            # The device has a new connection, so its hello will arrive soon.
            self.remove(device, "connection lost", since)
            self._hello_requests.add(device, self._context.now)

    def heard_from(self, device: str) -> None:
        """Record that a device has sent a new message of any kind."""
        self.last_wills.heard_from(device, self._link.party.last_heard(device), self._context.now)

    def resolve_wills(self) -> None:
        now = self._context.now
        for device, since in self.last_wills.timed_out(now).items():
            self.remove(device, "connection lost", since)
            self._hello_requests.add(device, now)
        for device in self.last_wills.take_refuted(now):
            if self._context.peer_log.take(now):
                log.warning(
                    "the broker published the will of %s, but the device is still connected: the wills that this "
                    "broker publishes cannot be trusted",
                    device,
                )

    # Messages to devices.

    def round_status(self) -> RoundStatus:
        """Return the state of the round, with the names of the devices that must send something.

        If the names are None, all devices must send something. The names are None if the run waits for enough
        devices to begin a round, or if more than MOST_NAMED updates are missing. Otherwise the state names the
        devices whose hello is missing and the devices whose update is missing. In a pause, and shortly after a
        task was sent, the state names only the devices whose hello is missing.
        """
        m, too_early = self._machine, self._times.ask.is_too_early_to_name(self._context.now)
        phase = m.asked if m.stage is Stage.COLLECTING else ""
        gathers = m.stage is Stage.GATHERING and not m.next_round_at
        if not too_early and (gathers or len(m.waited_for) > MOST_NAMED):
            return RoundStatus(m.round, phase, m.attempt, None)
        return RoundStatus(m.round, phase, m.attempt, tuple(sorted(map(short_name, self.missed()))))

    def missed(self) -> set[str]:
        """Return the devices that must send something, at most MOST_NAMED."""
        now = self._context.now
        too_early = self._times.ask.is_too_early_to_name(now)
        missing = set() if too_early else set(sorted(self._machine.waited_for)[:MOST_NAMED])
        ignored = self._context.bans.ignored
        missing.update(self._hello_requests.names(ignored, MOST_NAMED - len(missing), now))
        return missing

    def save_class_names(self) -> None:
        self.name_vote.fix_if_decided()
        if self.name_vote.fixed and not self.name_vote.saved:
            self._spool.save_class_names(self.name_vote.fixed)
            self.name_vote.saved = True

    def _apply_class_name_vote(self) -> None:
        """Remove, refuse and admit devices according to the current vote on the class names."""
        for hello in self.name_vote.outvoted():
            if hello.device in self._machine.roster:
                self.remove(hello.device, "its classes have other names")
                self.name_vote.hold(hello, self._context.now)
        for device, problem in self.name_vote.refused().items():
            self._refuse(device, problem)
        for hello in self.name_vote.released():
            with self._context.error_boundary.around(hello.device):
                self._admit(hello)

    def _hello_problem(self, hello: Hello) -> Problem | None:
        problem = hello_problem(hello, self._plan, self._limits, self._question.uses)
        if problem or not self._needs_domains:
            return problem
        claim = hello.domain or hello.device
        words = self._plan.domain_misfit(claim)
        words = words or claim_problem(hello.device, claim, self.domains, self._limits.domains)
        return Problem(Reason.UNFIT, words) if words else None

    def _welcome(self, device: str) -> None:
        names, can = self.name_vote.names, self._hellos[device][0].can if device in self._hellos else ()
        sends_names = forms.NAMES in can and self._link.fits_in_message(packed(names))
        sends_counts = self._needs_counts and forms.COUNTS in can
        uses = tuple(self._question.uses)
        about = replace(
            self._about, uses=uses, names=names if sends_names else (), counts=sends_counts,
            codec=self._lossless if forms.CODEC in can else b"",
        )  # fmt: skip
        instead = self._has_earlier.get(device, "") if forms.RUNS in can else ""
        keep = instead if self._generation.may_keep(instead) else ""
        self._link.send(device, Welcome(self._plan.encode(), about, instead, keep))

    def _refuse(self, device: str, problem: Problem) -> None:
        if self._context.peer_log.take(self._context.now):
            log.warning("%s cannot take part: %s", device, problem.message)
        self._link.meter.rejected[problem.reason] += 1
        self.misfits.note(device, self._hellos[device][1], problem.message)
        self._send_refusal(device, problem)

    def _send_refusal(self, device: str, problem: Problem) -> None:
        self.on_refusal(device, problem.message)
        self._link.send(device, refusal_of(problem.message, *self._hellos[device]))


def with_names_as_hash(hello: Hello) -> Hello:
    """Replace the class names of a hello by their hash.

    Then a hello with full names equals a hello that has only the hash of the same names.
    """
    return replace(hello, names=(), names_hash=digest_of(hello.names)) if hello.names else hello
