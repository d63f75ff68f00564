"""The service of the coordinator process: the connection, the subscriptions, and the announcements.

All other work is done by the run.
"""

from __future__ import annotations

import logging

from protofleet.coordinator.context import ProcessContext
from protofleet.coordinator.run import Run
from protofleet.coordinator.spool.epochs import epoch_file
from protofleet.protocol.link.base import Received
from protofleet.protocol.link.rate_limit import UNKNOWN_SENDER
from protofleet.protocol.storage.disk import NoRoom
from protofleet.protocol.transport.base import (
    Arrived,
    Connected,
    Denied,
    Disconnected,
    Done,
    Item,
    StopRequest,
)
from protofleet.protocol.wire.messages import HERE, Bye, Finished, Hello, State, Update
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.protocol.wire.printable import printable
from protofleet.protocol.wire.reasons import Rejected
from protofleet.runtime.broker_session import BrokerSession

log = logging.getLogger("protofleet.coordinator")


class CoordinatorService:
    """The service that decodes each message, notes the time, and passes the message to the run."""

    def __init__(self, context: ProcessContext, run: Run) -> None:
        self.context, self.run, self.link = context, run, context.link
        self.finished = False
        self.session = BrokerSession(log)
        self.link.remember(run.spool.last_heard())
        self.link.answers.admission_controller = run.answer_receiver
        self.link.error_scope, self.link.rate_limiter.on_flood = context.error_boundary.around, self._flooded

    @property
    def stopped(self) -> str:
        """Return why the process ends before its run is over, or ""."""
        return self.context.stopped

    @property
    def wake_at(self) -> float:
        c = self.context
        return min(
            part.wake_at for part in (self.session, self.link, self.run, c.bans, c.here_timer, c.shutdown)
        )

    def take(self, item: Item, now: float) -> None:
        self.context.now = now
        self._handle(item, now)

    def wake(self, now: float) -> None:
        self.context.now = now
        self.session.check(now)
        self.link.wake(now)
        self._announce_what_is_due(now)
        if reason := self.run.older_copy():
            self.context.stopped, self.finished = reason, True
            self.context.announce(State(False, reason))
        self._refresh_bans(now)
        self.run.wake()

    def end_turn(self, now: float) -> None:
        self.context.now = now
        self.run.end_turn()
        self._drop_excluded()
        self.link.tasks.flush(now)
        self.finished |= self.context.shutdown.is_over(now)

    def unwanted(self, topic: str) -> bool:
        """Return whether messages on this topic are dropped unread. Any thread may call this method."""
        bans = self.context.bans
        if not bans.ignored or topic == self.link.topics.coord_state:
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
                    self._arrived(topic, frame, now)
            case Connected(max_packet):
                self._connected(max_packet, now)
            case Disconnected(reason, final):
                self.context.connected = False
                self.context.here_timer.stop()
                if why := self.session.lost(reason, final, now):
                    self._stop(why)
            case Denied(topic, reason):
                self._denied(topic, reason, now)
            case Done(call):
                call()
            case StopRequest(reason):
                if not self.context.shutdown.begun:
                    self.context.announce(State(False, reason))
                self._stop(reason)

    # Methods for the connection.

    def _connected(self, max_packet: int, now: float) -> None:
        self.session.accepted()
        self.run.spool.check_claim()
        if not self.run.fits_through(max_packet):
            return
        self.session.stands(now)
        self.context.connected = True
        self.link.reconnected()
        self._subscribe()
        if self.context.shutdown.begun:
            self.context.announce(State(False, "finished"))
            return
        self.context.announce(State(True, who=self.link.who))
        self.context.here_timer.connected(now)
        self.run.go_on()

    def _denied(self, topic: str, reason: str, now: float) -> None:
        place = self.link.topics.parse(topic)
        to_all = place is not None and place.kind in ("bcast", "now")
        self.run.not_delivered(None if to_all else [place.device] if place else [])
        if self.context.peer_log.take(now):
            log.warning("the broker refused a message on %s: %s", topic, reason)

    def _stop(self, reason: str) -> None:
        """End the process, and note the reason if the shutdown at the end of the run has not begun."""
        self.context.stopped, self.finished = "" if self.context.shutdown.begun else reason, True

    def _announce_what_is_due(self, now: float) -> None:
        if now >= self.context.here_timer.wake_at:
            here = State(True, HERE, self.link.who, self.run.participants.round_status())
            self.link.publish(self.link.topics.coord_state, here)
            self.context.here_timer.announced(now)
            self.run.note_traffic()
        for device in self.context.shutdown.due(now):
            self.link.send(device, Finished(self.run.machine.rounds))

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
            self.link.answers.abandon(device, for_good=True)
            self.run.participants.ignore(device)
            self._subscribe()

    def _refresh_bans(self, now: float) -> None:
        bans = self.context.bans
        if now >= bans.wake_at:
            ignored_before = bans.ignored
            self.link.count_banned(bans.refresh(now))
            self._subscribe()
            self.run.participants.stop_ignoring(ignored_before - bans.ignored)

    # Methods for messages.

    def _arrived(self, topic: str, frame: bytes, now: float) -> None:
        try:
            for received in self.link.arrived(topic, frame, now):
                self._received(received)
            if place := self.link.topics.parse(topic):
                self.run.participants.heard_from(place.device)
        except Rejected as fault:
            if isinstance(fault, NoRoom):
                self.run.queue.no_room(str(fault))
            elif self.context.peer_log.take(now):
                log.warning("rejected a frame on the topic %.100r: %s", topic, fault)

    def _received(self, received: Received) -> None:
        device, participants = received.sender, self.run.participants
        match received.message:
            case State() if device == COORDINATOR:
                self._outranked(received)
            case Hello() as hello:
                self.context.departures.hello_received(received, self.link.last_heard(device)[1])
                participants.hello_received(received, hello)
            case State(online=False) if received.sequence == 0 and not self.context.shutdown.begun:
                participants.will_received(device)
            case State(online=True):
                participants.connected(device)
            case State(online=False) | Bye() if self._is_stale(received):
                pass
            case State(online=False, reason=reason):
                participants.bye_received(device, reason)
            case Bye(reason):
                over, may_log = self.context.shutdown.begun, self.context.peer_log.take(self.context.now)
                self.context.departures.left(device, reason, may_log, run_is_over=over)
                participants.bye_received(device, reason)
            case Update() as update:
                self.run.answer_receiver.fetched(update, received.object)

    def _is_stale(self, leave: Received) -> bool:
        return self.context.departures.is_stale(leave, self.link.last_heard(leave.sender)[1])

    def _outranked(self, later: Received) -> None:
        """End this process, because another coordinator of the federation takes precedence.

        This process sends nothing more, because the devices would ignore its messages.
        """
        mine, theirs = self.link.epoch, f"epoch {later.epoch} and run {later.run or '?'}"
        known = epoch_file(self.run.spool.folder.parents[1], self.link.topics.federation)
        who = later.message.who if isinstance(later.message, State) else ""
        said = f"; the other is {printable(who)}" if who else ""
        self.finished = True
        if later.epoch == mine:
            self.context.stopped = (
                f"another coordinator of this federation was started in the same second and goes on with {theirs}; "
                f"only one may run{said}"
            )
            return
        self.context.stopped = (
            f"a later coordinator conducts this federation: it has {theirs}, this one has epoch {mine}; only one may "
            f"run{said}. Where there is no other, a clock was ahead: write "
            f"{later.epoch} into {known} and start again"
        )
