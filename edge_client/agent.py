"""The agent of a device: it handles the coordinator's messages, the timers and the connection to the broker.

The agent sends the same update for the same task. It runs one training at a time, outside the network thread.
It never decides when a round ends. An update counts as delivered only when the coordinator's receipt for that
update has arrived.
"""

from __future__ import annotations

import logging

from protofleet.edge_client.context import DeviceContext, DeviceObserver
from protofleet.edge_client.conversation.coordinator_watchdog import CoordinatorWatchdog
from protofleet.edge_client.conversation.hello_exchange import NEVER, HelloExchange
from protofleet.edge_client.conversation.hello_timer import is_birth
from protofleet.edge_client.inbox.watch import InboxWatch
from protofleet.edge_client.run_end import RunEnd, says_run_is_over
from protofleet.edge_client.state.device import TakenOverError
from protofleet.edge_client.state.heard import forget_higher_epoch
from protofleet.edge_client.task_handler import TaskHandler
from protofleet.edge_client.trainer.job import EVALUATE, TRAIN
from protofleet.edge_client.view import AgentView
from protofleet.edge_client.work_queue import question_of
from protofleet.protocol.link.base import Received
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
from protofleet.protocol.wire.messages import (
    Receipt,
    Refusal,
    RoundStatus,
    State,
    Task,
    Welcome,
)
from protofleet.protocol.wire.reasons import DisconnectReason, Reason, Rejected
from protofleet.runtime.broker_session import BrokerSession
from protofleet.runtime.faults import OURS

log = logging.getLogger("protofleet.device")


class Agent:
    """The event handler of a device: it passes messages, timers and connection events to the agent's parts."""

    def __init__(
        self, context: DeviceContext, hellos: HelloExchange, tasks: TaskHandler, run_end: RunEnd,
        watchdog: CoordinatorWatchdog, session: BrokerSession, inbox: InboxWatch | None = None,
    ) -> None:  # fmt: skip
        """Create an agent from its parts, which `agent_parts` builds and connects."""
        self._context, self._hellos, self.tasks, self.run_end = context, hellos, tasks, run_end
        self._watchdog, self.session, self._inbox = watchdog, session, inbox
        self.link, self.state, self.run = context.link, context.state, tasks.run
        self.view = AgentView(context, tasks, watchdog)

    @property
    def wake_at(self) -> float:
        timers = (
            self.session.wake_at,
            self._hellos.next_at,
            self.tasks.delivery.wake_at,
            self._watchdog.alarm_at,
            self.run_end.wake_at,
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
        if self.tasks.drained and not self.finished:
            self._context.send_bye(DisconnectReason.DRAINED.value)
            self._context.end("")

    def wake(self, now: float) -> None:
        self._context.now = now
        self.session.check(now)
        self.link.wake(now)
        self._watchdog.check(now)
        if now >= self._hellos.next_at:
            self._hellos.send()
        if now >= self.tasks.delivery.wake_at:
            self.tasks.resend()
        if now >= self.run_end.wake_at:
            self.run_end.finish()
        if self._inbox and now >= self._inbox.wake_at:
            self._inbox.wake()

    def drain(self) -> None:
        """Take no new task, and end the device when its current update has a receipt."""
        self.tasks.drain()

    def pause(self, why: str) -> None:
        """Take no new work until `resume` is called; still finish the current work and deliver its update."""
        self._hellos.pause(why)

    def resume(self) -> None:
        self._hellos.resume()

    def _connected(self, max_packet: int, now: float) -> None:
        self.session.accepted()
        try:
            self.link.adapt(
                max_packet, self.tasks.delivery.largest_object, forms.MANIFEST in self.link.peer_forms
            )
        except BrokerError as error:
            self.link.reject_connection(error)
            return
        self.session.stands(now)
        self._watchdog.start(now)
        self._hellos.connected(waited_for=not self.tasks.idle)

    def _disconnected(self, reason: str, final: bool, now: float) -> None:
        self._hellos.disconnected()
        self._watchdog.stop()
        if why := self.session.lost(reason, final, now):
            self._context.end(why)

    def end_turn(self, now: float) -> None:
        """Do nothing, because the agent sends each message at once."""

    def _handle_frame(self, topic: str, frame: bytes, now: float) -> None:
        try:
            for received in self.link.arrived(topic, frame, now):
                self._handle_message(received, now)
        except NoRoom as fault:
            # The disk is full. The coordinator sends the task again after the next hello.
            self.tasks.disk_space.ran_out(str(fault))
        except Rejected as fault:
            self._context.warn("rejected on %.100s: %s", topic, fault)
            if fault.reason is Reason.STALE_ROUND:
                self.tasks.deliver_last_again()
        except (TakenOverError, *OURS):
            raise
        except Exception:
            # Only this message is lost. The coordinator sends a lost task again after the next hello.
            self._context.notify("erred", round=self.state.last_round)
            if self._context.log_limit.take(now):
                log.exception("an error occurred while a message on the topic %.100s was handled", topic)

    def _handle_message(self, received: Received, now: float) -> None:
        if received.run != self.link.run:
            return  # The message waited until its broadcast had arrived. Meanwhile the coordinator began another run.
        self._note_contact(received, now)
        match received.message:
            case Welcome() as welcome:
                self.tasks.welcomed(welcome, received.epoch)
            case Task() as task:
                self.tasks.take(question_of(received, task))
            case Receipt() as receipt:
                self.take_receipt(receipt)
                if self._inbox:
                    self._inbox.receipt_came()
            case message if is_birth(message):
                self._hellos.coordinator_came(waited_for=not self.tasks.idle)
            case State(online=True, now=RoundStatus() as status) if self._is_missed(status):
                self._hellos.missed(by_name=status.waits is not None)
            case Refusal() as refusal:
                self._hellos.refused(refusal)
            case message if says_run_is_over(message):
                self.run_end.received(received.run, now)

    def _note_contact(self, received: Received, now: float) -> None:
        """Record that the coordinator is reachable, and change the run if the message is from another run."""
        message = received.message
        forget_higher_epoch(self.state, self._context.heard_file, self.link.clock, received.epoch)
        self._hellos.received(message, received.epoch)
        # The coordinator sends a State to all devices, so a State is not a reply to this device.
        if not isinstance(message, State):
            self._context.coordinator_answered = True
        self.run.heard(message)
        self._watchdog.heard(self.link.last_new_message_at)
        if received.run != self.run.name:
            self.tasks.change_run(received.run)
        if not says_run_is_over(message):
            self.run_end.contradicted()

    def _is_missed(self, status: RoundStatus) -> bool:
        """Return whether the coordinator waits for this device, but this device has not received the task."""
        return status.names(self.link.me.name) and not self.tasks.knows((status.round, status.phase))

    def take_receipt(self, receipt: Receipt) -> None:
        if self.tasks.delivery.received(receipt, self._context.now):
            self._context.keep_last_heard(durable=False)
            if receipt.verdict == "accepted" and receipt.phase in (TRAIN, EVALUATE):
                # The evaluation has a round of its own, which follows the round of the last training.
                learned = receipt.round - (receipt.phase == EVALUATE)
                self._context.notify("accepted", round=receipt.round, learned=learned)
        elif receipt.verdict == "refused":
            log.warning(
                "the coordinator refused the update for round %d %s: %s",
                receipt.round, receipt.phase, receipt.reason,
            )  # fmt: skip
