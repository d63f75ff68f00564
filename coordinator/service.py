"""The service of the coordinator process: the connection, the subscriptions, and the announcements.

All other work is done by the run.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial

from protofleet.coordinator.context import ProcessContext
from protofleet.coordinator.devices.answered_rounds import AnsweredRounds
from protofleet.coordinator.devices.free_places import FreePlaces
from protofleet.coordinator.devices.name_lists import NameLists
from protofleet.coordinator.leader import Leader
from protofleet.coordinator.leading.behind import BehindError
from protofleet.coordinator.run import Run
from protofleet.coordinator.spool.index import RunMismatchError
from protofleet.protocol.link.base import Received
from protofleet.protocol.link.rate_limit import UNKNOWN_SENDER
from protofleet.protocol.storage.disk import NoRoom
from protofleet.protocol.storage.store import DamagedError
from protofleet.protocol.transport.base import (
    Arrived,
    Connected,
    Denied,
    Disconnected,
    Done,
    Item,
    StopRequest,
)
from protofleet.protocol.wire import forms
from protofleet.protocol.wire.messages import (
    HERE,
    MOST_NAMED,
    Bye,
    Finished,
    Hello,
    Probe,
    State,
    StepDown,
    Update,
    short_name,
)
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.protocol.wire.reasons import Rejected
from protofleet.runtime.broker_session import BrokerSession
from protofleet.runtime.command.errors import RunError
from protofleet.runtime.faults import OURS

log = logging.getLogger("protofleet.coordinator")


class CoordinatorService:
    """The service that decodes each message, notes the time, and passes the message to its run.

    All runs share one connection to the broker.
    """

    def __init__(self, context: ProcessContext, runs: Sequence[Run], stays: bool = False) -> None:
        """Create a service with these runs; if `stays` is true, it does not end when all of its runs are over."""
        self.context, self.link = context, context.link
        self.runs: dict[str, Run] = {}  # The runs that are open, by their names on the wire.
        self.finished, self._stays = False, stays
        self.session = BrokerSession(log)
        self.leader = Leader(context, self._end_with, self._say_birth, self._answer)
        self._max_packet = 0  # Largest packet of the broker in bytes; 0 while there is no session.
        self._told: set[str] = set()  # Runs whose end was announced.
        self._free_places, self.answered_rounds = FreePlaces(), AnsweredRounds()
        self._name_lists = NameLists()
        # Runs that are not open, but not over either. Their devices keep what belongs to these runs.
        self.paused: Collection[str] = ()
        # Makes a run the legacy run, and returns whether it has done so.
        self.choose_legacy: Callable[[str], bool] = lambda name: False
        self.link.error_scope, self.link.rate_limiter.on_flood = context.error_boundary.around, self._flooded
        context.on_run_end = self._announce_ends
        self.link.run_of = self._home_of
        for run in runs:
            self.add(run, starts=run.spool.device_time.lift is None)

    def add(self, run: Run, weight: float = 1.0, starts: bool = True) -> None:
        """Open a run, on the present connection if there is one.

        `weight` is the share of the devices' time that the run gets, in relation to the weights of the other runs.
        `starts` is false if the run only goes on after a restart of this process.
        """
        context = self.context
        heard = run.spool.last_heard().items()
        self.link.remember({d: mark for d, mark in heard if mark[:2] > self.link.last_heard(d)})
        self.runs[run.wire_name], run.is_open = run, True
        # The legacy run stays the same while it is only paused, because its devices would forget its state.
        self.link.add(run.link, is_legacy=self.link.run not in self.paused)
        run.link.answers.admission_controller = run.answer_receiver
        run.link.scope = partial(self._work_for, run)
        context.dispatcher.add(run.name, run, weight, run.spool.device_time.lift or 0.0, starts)
        self._store_lifts(run, starts)
        if context.connected:
            with context.around(run.name):
                if run.fits_through(self._max_packet):
                    self._begin(run, context.now)
            context.announce(self._birth())
            self._offer(run)

    def _offer(self, run: Run) -> None:
        """Offer a run to the connected devices that have a free place, as if their hellos arrived now."""

        def fits(hello: Hello) -> bool:
            device = hello.device
            is_known = device in self.link.keyring and device not in self.context.bans.ignored
            fits = is_known and run.participants.may_join(hello) and not run.has(device)
            return fits and not self.answered_rounds.has_any(device, run.generation.earlier)

        if run.times.shutdown.begun or run.name in self.context.failed:
            return
        for received, hello in self._free_places.take(fits):
            with self.context.error_boundary.around(hello.device), self._work_for(run):
                run.participants.hello_received(received, hello)

    def _store_lifts(self, added: Run, starts: bool) -> None:
        """Store how the runs share the devices, so that a restart does not change their shares."""
        if len(self.runs) == 1 and not self._stays:
            return
        for run in self.runs.values():
            if run.spool.device_time.lift is None or (starts and run is added):
                run.spool.device_time.share(self.context.dispatcher.lift_of(run.name))

    def lift(self, name: str) -> None:
        """Let a run that resumes claim nothing for the time of its pause."""
        share, run = self.context.dispatcher, self.runs[name]
        share.add(run.name, run, share.weight_of(run.name), share.lift_of(run.name), starts=True)
        self._store_lifts(run, starts=True)

    def remove(self, name: str) -> None:
        """Close the run of this name on the wire. The other runs go on, and the files of the run stay as they are."""
        run = self.runs.pop(name)
        run.is_open = False
        self._told.discard(name)
        self.context.failed.pop(run.name, None)
        self.link.remove(run.link, self.context.now)
        self.context.dispatcher.remove(run.name)
        if self.context.connected:
            self.context.announce(self._birth())

    def lead(self, name: str) -> None:
        """Make the run of this name on the wire the legacy run; it may be a run that is not open now."""
        self.link.make_legacy(name)
        if self.context.connected:
            self.context.announce(self._birth())

    @property
    def _able(self) -> list[Run]:
        """Return the runs that have not failed."""
        return [run for run in self.runs.values() if run.name not in self.context.failed]

    def _for_each(self, act: Callable[[Run], None], runs: Collection[Run] | None = None) -> None:
        """Act on each run; an error in one of several runs does not concern the others."""
        for run in self._able if runs is None else runs:
            with self.context.around(run.name):
                act(run)

    @property
    def run(self) -> Run:
        """Return the legacy run: all devices whose software follows only one run take part in it."""
        return self.runs[self.link.run]

    @property
    def stopped(self) -> str:
        """Return why the process ends before its runs are over, or ""."""
        return self.context.stopped

    @property
    def end(self) -> RunError | None:
        """Return the error with which the process ends because of another coordinator, or None."""
        return self.context.end

    @property
    def is_ending(self) -> bool:
        """Return whether all runs are over, and the process waits only until the devices know it."""
        return not self._stays and all(run.times.shutdown.begun for run in self.runs.values())

    @property
    def wake_at(self) -> float:
        c = self.context
        process = min(self.session.wake_at, self.link.wake_at, c.bans.wake_at, c.here_timer.wake_at)
        process = min(process, self.leader.wake_at)
        return min([process, *(run.wake_at for run in self.runs.values())])

    def take(self, item: Item, now: float) -> None:
        self.context.now = now
        self._handle(item, now)

    def wake(self, now: float) -> None:
        self.context.now = now
        self.session.check(now)
        self.link.wake(now)
        self.leader.wake(now)
        self._announce_what_is_due(now)
        self._for_each(self._check_folder)
        self._refresh_bans(now)
        self._for_each(Run.wake)

    def _check_folder(self, run: Run) -> None:
        """End the process, or only the run, if the folder of the run is an older copy."""
        if not (reason := run.older_copy()):
            return
        if self.context.isolates_runs:
            raise DamagedError(reason)
        self.context.stopped, self.finished = reason, True
        self.context.announce(State(False, reason))

    def end_turn(self, now: float) -> None:
        self.context.now = now
        self._for_each(Run.end_turn)
        self._drop_excluded()
        self.link.end_turn(now)
        self.leader.end_turn()
        self.finished |= self.is_ending and all(run.times.shutdown.is_over(now) for run in self.runs.values())

    def unwanted(self, topic: str) -> bool:
        """Return whether messages on this topic are dropped unread. Any thread may call this method."""
        bans = self.context.bans
        if not bans.ignored or topic in (self.link.topics.coord_state, self.link.topics.coord_probe):
            return False
        name = self.link.device_of_topic(topic)
        if bans.drops(name):
            return True
        return UNKNOWN_SENDER in bans.ignored and bans.drops(self.link.rate_limiter.counted_as(name))

    def _is_left(self, topic: str, retained: bool) -> bool:
        """Return whether a message is only the retained state of a device that is no longer enrolled.

        The broker stores such a message and sends it to each new subscriber. It does not mean that the device
        tries to connect.
        """
        if not retained:  # Most messages are not retained, so this check comes first.
            return False
        place = self.link.topics.parse(topic)
        kept = place is not None and place.kind == "device_state"
        return kept and self.link.device_of_topic(topic) not in self.link.keyring

    def _handle(self, item: Item, now: float) -> None:
        match item:
            case Arrived(topic, frame, retained) if not (
                self.unwanted(topic) or self._is_left(topic, retained)
            ):
                with self.context.error_boundary.around(self.link.device_of_topic(topic)):
                    self._arrived(topic, frame, retained, now)
            case Connected(max_packet):
                self._connected(max_packet, now)
            case Disconnected(reason, final) as lost:
                self.context.connected = False
                self.context.here_timer.stop()
                for run in self.runs.values():
                    run.times.ask.wait_for_nobody()
                if why := self.session.lost(reason, final, now):
                    self._stop(why)
                elif lost.cut:
                    self._cut(lost, now)
            case Denied(topic, reason):
                self._denied(topic, reason, now)
            case Done(call):
                call()
            case StopRequest(reason):
                self.stop(reason)

    # Methods for the connection.

    def _connected(self, max_packet: int, now: float) -> None:
        self.session.accepted()
        self._max_packet = max_packet
        self._for_each(lambda run: run.spool.check_claim())
        if not self._fit_through(max_packet):
            return
        self.session.stands(now)
        self.context.connected = True
        self.leader.connected(now)
        self.link.reconnected()
        self._subscribe()
        if self.is_ending:
            self.context.announce(State(False, "finished"))
            return
        self.context.announce(self._birth())
        self.context.here_timer.announced(now)
        self._for_each(lambda run: self._begin(run, now))

    def _cut(self, lost: Disconnected, now: float) -> None:
        """Look whether another process has become the coordinator; without runs, leave the name to it."""
        if self.is_ending:
            self._stop("")
        else:
            self.leader.cut(lost, now)

    def still_lost(self, reason: str) -> None:
        """Log why a process that looks for another coordinator has no connection either."""
        self.session.lost(reason, False, self.context.now)

    def _fit_through(self, max_packet: int) -> bool:
        fit = []
        self._for_each(lambda run: fit.append(run.fits_through(max_packet)))
        return all(fit)

    def _begin(self, run: Run, now: float) -> None:
        """Let a run continue over the present connection."""
        if not run.times.shutdown.begun:
            run.times.ask.wait_for_devices(now)
            run.go_on()

    def _birth(self) -> State:
        return State(True, who=self.link.who, runs=self._active())

    def _say_birth(self) -> None:
        if self.context.connected and not self.is_ending:
            self.context.announce(self._birth())

    def _answer(self) -> None:
        """Answer a process that asks whether a coordinator leads."""
        if self.is_ending:
            self.context.announce(State(False, "finished"))
        else:
            self.link.announce(self._here(), retain=False)

    def _active(self) -> tuple[str, ...] | None:
        """Return the names of the active runs; None in a process that conducts only one run."""
        if not self._stays and len(self.runs) == 1:
            return None
        return tuple(sorted(name for name, run in self.runs.items() if not run.times.shutdown.begun))

    def _denied(self, topic: str, reason: str, now: float) -> None:
        place = self.link.topics.parse(topic)
        to_all = place is not None and place.kind in ("bcast", "now")
        self._for_each(
            lambda run: run.not_delivered(None if to_all else [place.device] if place else []),
            self.runs.values(),
        )
        if self.context.peer_log.take(now):
            log.warning("the broker refused a message on %s: %s", topic, reason)

    def stop(self, reason: str) -> None:
        """End the process, and say to all parties that it is offline."""
        if not self.is_ending:
            self.context.announce(State(False, reason))
        self._stop(reason)

    def _stop(self, reason: str) -> None:
        """End the process, and note the reason if the shutdown at the end of the runs has not begun."""
        self.context.stopped, self.finished = "" if self.is_ending else reason, True

    def _end_with(self, error: RunError) -> None:
        self.context.end = error
        self.context.stopped, self.finished = str(error), True

    def _announce_what_is_due(self, now: float) -> None:
        asks = [run.times.ask for run in self.runs.values()]
        if now >= min([self.context.here_timer.wake_at, *(ask.wake_at for ask in asks)]):
            self.link.announce(self._here(), retain=False)
            self.context.here_timer.announced(now)
            for run in self.runs.values():
                run.times.ask.asked(now)
            self._for_each(Run.note_traffic)
        for run in self.runs.values():
            for device in run.times.shutdown.due(now):
                run.link.send(device, Finished(run.machine.rounds))

    def _here(self) -> State:
        """Return the `here` message.

        Its round is that of the legacy run. Its names are those of all runs: a device that takes part in several runs
        sends a hello in each of its runs if it is named.
        """
        runs = [run.participants for run in self._legacy_first()]
        status = runs[0].round_status() if runs else None
        if status and status.waits is not None and len(runs) > 1:
            missed = {short_name(device) for run in runs[1:] for device in run.missed()}
            status = replace(status, waits=tuple(sorted({*status.waits, *missed})[:MOST_NAMED]))
        return State(True, HERE, self.link.who, status, self._active())

    def _legacy_first(self) -> list[Run]:
        return sorted(self.runs.values(), key=lambda run: run.wire_name != self.link.run)

    def _announce_ends(self) -> None:
        """Announce the end of each run that is over. While other runs go on, only the devices of the run are told."""
        for run in self.runs.values():
            if not run.times.shutdown.begun or run.wire_name in self._told:
                continue
            self._told.add(run.wire_name)
            if self.is_ending:
                self.context.announce(State(False, "finished"))
                self.context.here_timer.stop()
                return
            for device in sorted(run.machine.roster):
                run.link.send(device, Finished(run.machine.rounds))

    # These methods decide whose messages are received.

    def _subscribe(self) -> None:
        """Subscribe to the topics of all devices that are not ignored.

        This includes the devices that were enrolled since the last subscription.
        """
        if self.context.connected:
            self.link.subscribe_except(self.context.bans.ignored)

    def _flooded(self, who: str) -> None:
        bans, now = self.context.bans, self.context.now
        if who in bans.ignored:
            return
        if who:
            bans.ban(who, now)
        else:
            seconds = bans.pause(who, now)
            log.warning(
                "too many frames arrive under names that are not enrolled: such frames are dropped for %.0f s",
                seconds,
            )
        self.context.error_boundary.exclude(who)

    def _drop_excluded(self) -> None:
        """Stop fetching updates from the devices that were excluded in this turn, and do not wait for these devices.

        This is done at the end of the turn, after the event that caused the exclusion is handled completely.
        """
        for device in self.context.error_boundary.take_excluded():
            for run in self._able:
                with self.context.around(run.name):
                    run.link.answers.abandon(device, for_good=True)
                    run.participants.ignore(device)
            self._subscribe()

    def _refresh_bans(self, now: float) -> None:
        bans = self.context.bans
        if now >= bans.wake_at:
            ignored_before = bans.ignored
            self.link.legacy.count_banned(bans.refresh(now))
            self._subscribe()
            self._for_each(lambda run: run.participants.stop_ignoring(ignored_before - bans.ignored))

    # Methods for messages.

    def _arrived(self, topic: str, frame: bytes, retained: bool, now: float) -> None:
        try:
            for received in self.link.arrived(topic, frame, now):
                self._received(received, retained)
            if place := self.link.topics.parse(topic):
                for run in self._able:
                    with self._work_for(run):
                        run.participants.heard_from(place.device)
        except Rejected as fault:
            if isinstance(fault, NoRoom):
                words = str(fault)
                self._for_each(lambda run: run.queue.no_room(words), self.runs.values())
            elif self.context.peer_log.take(now):
                log.warning("rejected a frame on the topic %.100r: %s", topic, fault)

    def _received(self, received: Received, retained: bool) -> None:
        device = received.sender
        match received.message:
            case State() as state if device == COORDINATOR:
                self.leader.state_received(received, state, retained, self.context.now)
            case Probe():
                self.leader.probed(self.context.now)
            case StepDown() as asked:
                self.leader.asked_to_end(asked)
            case Hello() as hello:
                self._hello_received(received, hello)
            case State(online=False) if received.sequence == 0:
                self._free_places.left(device)
                self.answered_rounds.left(device)
                for run in self._runs_with(device):
                    with self._work_for(run):
                        if not run.times.shutdown.begun:
                            run.participants.will_received(device)
                        else:
                            run.participants.bye_received(device, "")
            case State(online=True):
                for run in self._runs_with(device):
                    with self._work_for(run):
                        run.participants.connected(device)
            case State(online=False) | Bye() if self._is_stale(received):
                pass
            case State(online=False, reason=reason):
                self._free_places.left(device)
                self.answered_rounds.left(device)
                for run in self._runs_with(device):
                    with self._work_for(run):
                        run.participants.bye_received(device, reason)
            case Bye(reason):
                self._bye_received(received, reason)
            case Update() as update:
                with self._work_for(run := self.runs[received.run]):
                    run.answer_receiver.fetched(update, received.object)

    def _hello_received(self, received: Received, hello: Hello) -> None:
        device, follows_several = hello.device, forms.RUNS in hello.can
        if self._stays:  # A run that begins later does not get the names in full.
            hello = self._name_lists.completed(hello)
        # Any device can write a high epoch into a header, so this is only counted.
        self.context.higher_epochs += received.epoch > self.link.epoch
        if hello.last_state:
            if self._is_behind(device, hello.last_state):
                return
            hello = replace(hello, last_state=b"")
        self.context.departures.hello_received(received, self.link.last_heard(device)[1])
        self._free_places.hello_received(received, hello)
        self.answered_rounds.hello_received(received, hello)
        working = hello.working if follows_several else None
        self.context.dispatcher.hello_received(device, received.boot, working)
        if run := self._run_for(received, hello):
            with self._work_for(run):
                # A device that follows several runs waits until a run selects it. Another device would wait in vain.
                refuses = self._active() is None or not follows_several
                run.participants.hello_received(received, hello, refuses)
        elif received.run and received.run not in self.paused:
            self.link.unassigned.send_as(received.run, device, Finished(0))

    def _is_behind(self, device: str, last_state: bytes) -> bool:
        """Return whether a state that a device has sent on proves a higher epoch; if so, end this process."""
        try:
            proven = self.link.proven_epoch(last_state)
        except Rejected as fault:
            if self.context.peer_log.take(self.context.now):
                log.warning("%s has sent a state that proves no epoch: %s", device, fault)
            return False
        if not proven:
            return False
        log.error("%s has proved that it has heard epoch %d", device, proven)
        # Devices that have not heard the higher epoch, and other coordinators, must not take this process for alive.
        self.context.announce(State(False, "devices have heard a higher epoch"))
        self._end_with(BehindError(self.link.epoch, proven))
        return True

    def _work_for(self, run: Run) -> contextlib.AbstractContextManager[None]:
        """Catch an error of ours in the work of a run for a device. Other errors concern the device alone."""
        return self.context.around(run.name, (RunMismatchError, *OURS))

    def _run_for(self, received: Received, hello: Hello) -> Run | None:
        """Return the run that a hello goes to: the run that it names, or a run that selects the device.

        A device whose software follows only one run is in the legacy run. Runs that this process of the device cannot
        follow are left out.
        """
        if self._active() is None:
            return self.runs.get(self.link.run)
        if forms.RUNS not in hello.can:
            return self._legacy_for(hello)
        if received.run:
            return self.runs.get(received.run) or self._later_generation(received.run)
        return self._run_to_join(hello, received.boot) if hello.capacity else None

    def _later_generation(self, name: str) -> Run | None:
        """Return the open run that had this name on the wire before."""
        return next((run for run in self.runs.values() if name in run.generation.earlier), None)

    def _run_to_join(self, hello: Hello, boot: int) -> Run | None:
        """Return a run that the device does not have; first one that does not count on the device."""
        fit = [
            run for run in self._not_over
            if run.participants.may_join(hello) and not run.participants.misfits.has(hello.device, boot)
            # The device gets the welcome of a new generation after the hello of the generation that it has.
            and not self.answered_rounds.has_any(hello.device, run.generation.earlier)
        ]  # fmt: skip
        new = (run for run in fit if not run.has(hello.device))
        lacking = (run for run in fit if run.participants.may_lack(hello.device, boot))
        return next(new, None) or next(lacking, None)

    def _legacy_for(self, hello: Hello) -> Run | None:
        """Return the legacy run. The oldest run that selects such a device becomes the legacy run.

        A legacy run with such devices stays the legacy run, because they would forget its state.
        """
        legacy = self.runs.get(self.link.run)
        if legacy is None or legacy.participants.may_join(hello) or self._follow_only(legacy):
            return legacy
        fits = next((run for run in self._not_over if run.participants.may_join(hello)), None)
        return fits if fits and self.choose_legacy(fits.name) else legacy

    def _follow_only(self, run: Run) -> bool:
        """Return whether the run may have devices whose software follows only one run."""
        devices = {*run.machine.roster, *run.machine.cohort}
        return not all(self.link.understands(device, forms.RUNS) for device in devices)

    @property
    def _not_over(self) -> list[Run]:
        """Return the runs that are not over, the oldest first."""
        return [run for run in self.runs.values() if not run.times.shutdown.begun]

    def _bye_received(self, received: Received, reason: str) -> None:
        """Remove a device from the run of its bye. A device that takes part in other runs goes on with these."""
        device, named = received.sender, self.runs.get(received.run)
        self._free_places.left(device)
        runs = [named] if named else self._runs_with(device)
        over = all(run.times.shutdown.begun for run in runs)
        with self._work_for(named) if named else contextlib.nullcontext():
            self.context.departures.left(
                device, reason, self.context.peer_log.take(self.context.now), run_is_over=over
            )
        for run in runs:
            with self._work_for(run):
                run.participants.bye_received(device, reason)

    def selection_changed(self) -> None:
        """Let each run drop the devices that it does not select any more, and ask the other devices for a hello."""
        self._for_each(Run.drop_unselected)
        if self.context.connected:
            self.context.announce(self._birth())

    def _runs_with(self, device: str) -> list[Run]:
        """Return the runs that the device takes part in; if there is none, the legacy run."""
        found = [run for run in self.runs.values() if run.has(device)]
        return found or [run for run in (self.runs.get(self.link.run),) if run]

    def _home_of(self, device: str) -> str:
        """Return the run that counts what a device sends without the name of an open run.

        Nothing is counted in a run that does not select the device.
        """
        runs = self._legacy_first()
        found = [run for run in runs if run.has(device)] or [
            run for run in runs if run.selection.selects(device)
        ]
        return found[0].wire_name if found else ""

    def _is_stale(self, leave: Received) -> bool:
        return self.context.departures.is_stale(leave, self.link.last_heard(leave.sender)[1])
