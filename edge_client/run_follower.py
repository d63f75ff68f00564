"""One run in which a device takes part: it handles the coordinator's messages about this run."""

from __future__ import annotations

import contextlib
import logging

from protofleet.edge_client.active_runs import ActiveRuns
from protofleet.edge_client.context import DeviceContext
from protofleet.edge_client.conversation.coordinator_watchdog import CoordinatorWatchdog
from protofleet.edge_client.conversation.hello_exchange import HelloExchange
from protofleet.edge_client.conversation.hello_timer import is_birth
from protofleet.edge_client.inbox.watch import InboxWatch
from protofleet.edge_client.run_end import RunEnd, says_run_is_over
from protofleet.edge_client.state.heard import forget_higher_epoch
from protofleet.edge_client.task_handler import TaskHandler
from protofleet.edge_client.trainer.job import TRAIN
from protofleet.edge_client.work_queue import question_of
from protofleet.protocol.link.base import Received
from protofleet.protocol.wire.messages import (
    Receipt,
    Refusal,
    RoundStatus,
    State,
    Task,
    Welcome,
)
from protofleet.protocol.wire.names import EVALUATE
from protofleet.runtime.logs import lines_of_run

log = logging.getLogger("protofleet.device")


class RunFollower:
    def __init__(
        self, context: DeviceContext, hellos: HelloExchange, tasks: TaskHandler, run_end: RunEnd,
        watchdog: CoordinatorWatchdog, active: ActiveRuns, inbox: InboxWatch | None = None,
    ) -> None:  # fmt: skip
        self.context, self.hellos, self.tasks, self.run_end = context, hellos, tasks, run_end
        self._watchdog, self._active, self.inbox = watchdog, active, inbox
        self.link, self.state, self.run = context.link, context.state, tasks.run
        self.refused = False  # whether the coordinator has refused this device in this run

    @property
    def is_live(self) -> bool:
        """Return whether this object has a run that is not over."""
        return bool(self.run.name) and not self.run.over

    @property
    def wake_at(self) -> float:
        return min(self.hellos.next_at, self.tasks.resend_at, self.run_end.wake_at)

    def wake(self, now: float) -> None:
        with self._lines():
            if now >= self.hellos.next_at:
                self.hellos.send()
            if now >= self.tasks.resend_at:
                self.tasks.resend()
            if now >= self.run_end.wake_at:
                self.run_end.finish()

    def handle(self, received: Received) -> None:
        with self._lines():
            self._handle(received)

    def _lines(self) -> contextlib.AbstractContextManager[None]:
        """Name the run in the log lines of a device whose coordinator leads several runs."""
        return lines_of_run(self.run.name if self._active.several else "")

    def _handle(self, received: Received) -> None:
        if received.run != self.link.run:
            return  # The message waited until its broadcast had arrived. Meanwhile the coordinator began another run.
        self._note_contact(received)
        match received.message:
            case Welcome() as welcome:
                self.tasks.welcomed(welcome, received.epoch)
            case Task() if self._active.several and self.run.plan is None and not self.tasks.queue.busy:
                self.hellos.send()  # The coordinator replies with the plan, and then with the task.
            case Task() as task:
                self.tasks.take(question_of(received, task))
            case Receipt() as receipt:
                self.take_receipt(receipt)
                if self.inbox:
                    self.inbox.receipt_came()
            case message if is_birth(message):
                self.hellos.coordinator_came(waited_for=not self.tasks.idle)
            case State(online=True, now=RoundStatus() as status) if self._is_missed(status):
                self.hellos.missed(by_name=status.waits is not None)
            case Refusal() as refusal:
                self.hellos.refused(refusal)
            case message if self._says_run_is_over(received):
                self.run_end.received(received.run, self.context.now)

    def _says_run_is_over(self, received: Received) -> bool:
        """Return whether the message ends this run. A State of a coordinator of several runs ends none of them."""
        about_all = self._active.several and isinstance(received.message, State)
        return says_run_is_over(received.message) and not about_all

    def _note_contact(self, received: Received) -> None:
        """Record that the coordinator is reachable, and change the run if the message is from another run."""
        message = received.message
        forget_higher_epoch(self.state, self.context.heard_file, self.link.clock, received.epoch)
        self.hellos.received(message, received.epoch)
        # The coordinator sends a State to all devices, so a State is not a reply to this device.
        if not isinstance(message, State):
            self.context.status.coordinator_answered = True
        self.run.heard(message)
        self.note_new_message()
        if received.run != self.run.name:
            self.tasks.change_run(received.run)
        if not says_run_is_over(message):
            self.run_end.contradicted()

    def note_new_message(self) -> None:
        """Tell the watchdog when the last new message of the coordinator arrived, also a message about no run."""
        self._watchdog.heard(self.link.last_new_message_at)

    def _is_missed(self, status: RoundStatus) -> bool:
        """Return whether the coordinator waits for this device, but this device has not received the task.

        A coordinator of several runs does not say for which of them it waits.
        """
        if self._active.several:
            return status.names(self.link.me.name) and not self.tasks.has_task
        return status.names(self.link.me.name) and not self.tasks.knows((status.round, status.phase))

    def take_receipt(self, receipt: Receipt) -> None:
        if self.tasks.delivery.received(receipt, self.context.now):
            self.context.keep_last_heard(durable=False)
            if receipt.verdict == "accepted" and receipt.phase in (TRAIN, EVALUATE):
                # The evaluation has a round of its own, which follows the round of the last training.
                learned = receipt.round - (receipt.phase == EVALUATE)
                self.context.notify("accepted", round=receipt.round, learned=learned)
        elif receipt.verdict == "refused":
            log.warning(
                "the coordinator refused the update for round %d %s: %s",
                receipt.round, receipt.phase, receipt.reason,
            )  # fmt: skip
