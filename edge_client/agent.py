"""The agent of a device: it passes messages, timers and the connection to the broker to the runs of the device.

The agent sends the same update for the same task. It runs one training at a time, outside the network thread.
It never decides when a round ends. An update counts as delivered only when the coordinator's receipt for that
update has arrived.
"""

from __future__ import annotations

import logging

from protofleet.edge_client.context import DeviceContext, DeviceObserver
from protofleet.edge_client.conversation.coordinator_watchdog import CoordinatorWatchdog
from protofleet.edge_client.conversation.hello_exchange import NEVER
from protofleet.edge_client.current_run import CurrentRun
from protofleet.edge_client.inbox.watch import InboxWatch
from protofleet.edge_client.run_end import RunEnd
from protofleet.edge_client.run_places import RunPlaces
from protofleet.edge_client.state.device import TakenOverError
from protofleet.edge_client.task_handler import TaskHandler
from protofleet.edge_client.view import AgentView
from protofleet.protocol.storage.disk import NoRoom
from protofleet.protocol.transport.address import BrokerError
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
from protofleet.protocol.wire.reasons import DisconnectReason, Reason, Rejected
from protofleet.runtime.broker_session import BrokerSession
from protofleet.runtime.faults import OURS

log = logging.getLogger("protofleet.device")


class Agent:
    """The event handler of a device: it passes messages, timers and connection events to the agent's parts."""

    def __init__(
        self, context: DeviceContext, places: RunPlaces, watchdog: CoordinatorWatchdog, session: BrokerSession,
        inbox: InboxWatch | None = None,
    ) -> None:  # fmt: skip
        """Create an agent from its parts, which `agent_parts` builds and connects."""
        self._context, self.places = context, places
        self._watchdog, self.session, self._inbox = watchdog, session, inbox
        self.link, self.state = context.link, context.state
        self.view = AgentView(context, places, watchdog)

    @property
    def tasks(self) -> TaskHandler:
        """Return the handler of the tasks of the first run."""
        return self.places.first.tasks

    @property
    def run(self) -> CurrentRun:
        return self.places.first.run

    @property
    def run_end(self) -> RunEnd:
        return self.places.first.run_end

    @property
    def wake_at(self) -> float:
        timers = (
            self.session.wake_at,
            self.places.wake_at,
            self._watchdog.alarm_at,
            self._inbox.wake_at if self._inbox else NEVER,
        )
        return min(self.link.wake_at, *timers)

    @property
    def finished(self) -> bool:
        return self._context.finished

    def observe(self, observer: DeviceObserver) -> None:
        self._context.observers.append(observer)

    def take(self, item: Item, now: float) -> None:
        self._context.now = now
        match item:
            case Arrived(topic, frame):
                self._handle_frame(topic, frame, now)
            case Connected(max_packet):
                self._connected(max_packet, now)
            case Disconnected(reason, final):
                self._disconnected(reason, final, now)
            case Denied(topic, reason):
                self._context.warn("the broker refused a message on %s: %s", topic, reason)
            case Done(call):
                call()
            case StopRequest(reason):
                self._context.send_bye(reason)
                self._context.end(reason)
        if self.places.drained and not self.finished:
            self._context.send_bye(DisconnectReason.DRAINED.value)
            self._context.end("")

    def wake(self, now: float) -> None:
        self._context.now = now
        self.session.check(now)
        self.link.wake(now)
        self._watchdog.check(now)
        self.places.wake(now)
        if self._inbox and now >= self._inbox.wake_at:
            self._inbox.wake()

    def drain(self) -> None:
        """Take no new task, and end the device when its current update has a receipt."""
        self.places.drain()

    def pause(self, why: str) -> None:
        """Take no new work until `resume` is called; still finish the current work and deliver its update."""
        self.places.pause(why)

    def resume(self) -> None:
        self.places.resume()

    def _connected(self, max_packet: int, now: float) -> None:
        self.session.accepted()
        try:
            self.link.adapt(max_packet, self.places.largest_object, forms.MANIFEST in self.link.peer_forms)
        except BrokerError as error:
            self.link.reject_connection(error)
            return
        self.session.stands(now)
        self._watchdog.start(now)
        self.places.connected()

    def _disconnected(self, reason: str, final: bool, now: float) -> None:
        self.places.disconnected()
        self._watchdog.stop()
        if why := self.session.lost(reason, final, now):
            self._context.end(why)

    def end_turn(self, now: float) -> None:
        """Do nothing, because the agent sends each message at once."""

    def _handle_frame(self, topic: str, frame: bytes, now: float) -> None:
        try:
            for received in self.link.arrived(topic, frame, now):
                self.places.received(received)
        except NoRoom as fault:
            # The disk is full. The coordinator sends the task again after the next hello.
            self.tasks.disk_space.ran_out(str(fault))
        except Rejected as fault:
            self._context.warn("rejected on %.100s: %s", topic, fault)
            if fault.reason is Reason.STALE_EPOCH:
                self.places.lower_epoch_heard()
            if fault.reason is Reason.STALE_ROUND and (follower := self.places.named(self.link.heard_run)):
                follower.tasks.deliver_last_again()
        except (TakenOverError, *OURS):
            raise
        except Exception:
            # Only this message is lost. The coordinator sends a lost task again after the next hello.
            self._context.notify("erred", round=self.state.last_round)
            if self._context.status.log_limit.take(now):
                log.exception("an error occurred while a message on the topic %.100s was handled", topic)
