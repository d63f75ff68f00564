"""The exchange of hellos: when the device sends a hello, and what it does after a refusal.

No hello is sent while the device is disconnected or paused.
"""

from __future__ import annotations

import logging

from protofleet.edge_client.context import DeviceContext
from protofleet.edge_client.conversation.hello import HelloSender
from protofleet.edge_client.conversation.hello_timer import HelloTimer
from protofleet.edge_client.conversation.old_messages import RefusalCheck
from protofleet.edge_client.conversation.retry_backoff import RetryBackoff
from protofleet.edge_client.current_run import CurrentRun
from protofleet.methods.contract.plan import Plan
from protofleet.protocol.wire.messages import Bye, Message, Receipt, Refusal, State, Task, Welcome
from protofleet.protocol.wire.printable import printable
from protofleet.protocol.wire.reasons import DisconnectReason

log = logging.getLogger("protofleet.device")

NEVER = float("inf")


class HelloExchange:
    def __init__(self, context: DeviceContext, run: CurrentRun, sender: HelloSender) -> None:
        self._context, self._run, self._sender = context, run, sender
        self._timer, self._refusals = HelloTimer(context.link.me.name), RefusalCheck()
        self.backoff = RetryBackoff(context.link.me.name)
        self.next_at = NEVER

    def connected(self, waited_for: bool = True, announces: bool = True) -> None:
        """Handle a new connection to the broker.

        `waited_for` is true if the coordinator may wait for an update of this device. If `announces` is true, also
        publish that the device is online.
        """
        self._context.connected = True
        self._sender.name_classes_in_full()
        self._timer.forget_last_here()
        link = self._context.link
        if announces:
            link.publish(link.topics.device_state(link.me.name), State(True), retain=True)
        if waited_for or not self._timer.was_welcomed:  # If no welcome came, the hello may be lost.
            self._timer.cancel_spread()
            self.send()
        else:  # Perhaps the broker was restarted, and all devices connect again at the same moment.
            self._send_in_turn()

    def disconnected(self) -> None:
        self._context.connected, self.next_at = False, NEVER

    def send(self) -> None:
        """Send a hello now; if the device is in a pause, send the hello after the pause."""
        now, link = self._context.now, self._context.link
        if now < (earliest := max(self.backoff.until, self._timer.not_before)):
            self.next_at = earliest
            return
        self._sender.send(self._plan)
        self._refusals.hello_sent(link.me.boot, link.last_sequence, now)
        self._timer.hello_sent(now)
        self.next_at = self._timer.next_hello(now)

    @property
    def _plan(self) -> Plan | None:
        """Return the plan that a hello names."""
        link = self._context.link
        return self._run.plan if self._run.was_welcomed_by(link.run, link.epoch) else None

    def prove_epoch(self) -> None:
        """Send a hello that proves the highest epoch to a coordinator with a lower epoch.

        The device does not follow that coordinator, so the times of its other hellos stay as they are.
        """
        if not self.backoff.paused and self._context.now >= self.backoff.until:
            self._sender.send_proof(self._plan)

    def coordinator_came(self, waited_for: bool) -> None:
        """Handle the coordinator's message that it has started or has connected again."""
        if waited_for or not self._timer.was_welcomed:
            self.send()
        else:
            self._send_in_turn()

    def missed(self, by_name: bool) -> None:
        """Send a hello because the coordinator waits for devices.

        `by_name` is true if the coordinator has named this device.
        """
        if by_name:
            self.send()
        else:
            self._send_in_turn()

    def _send_in_turn(self) -> None:
        """Send a hello after a random delay, because all devices may send a hello for the same reason now."""
        self._timer.spread(self._context.now)
        self.send()

    def received(self, message: Message, epoch: int) -> None:
        self._timer.heard(message, epoch)
        if isinstance(message, (Welcome, Task, Receipt)):
            self._refusals.contradicted()
        # A disconnected device needs no time for its next hello: it sends a hello when it is connected again.
        if self._context.connected:
            self.next_at = max(self._timer.next_hello(self._context.now), self.backoff.until)

    def refused(self, refusal: Refusal) -> None:
        """Handle a refusal.

        A refusal may contain the boot of a later process of this device. Such a refusal takes effect only if this
        process has a lower boot.
        """
        self._context.keep_last_heard(durable=True)
        now, boot, own_boot = self._context.now, refusal.boot, self._context.link.me.boot
        counts = (
            self._context.state.is_superseded(boot, own_boot) if boot else self._refusals.counts(refusal, now)
        )
        if counts and refusal.answers and self._sender.by_hash:
            self._send_in_full_at(now)
        elif counts:
            problem = f"the coordinator refuses this device: {printable(refusal.reason)}"
            if boot:  # A later process has this name.
                self._context.end(problem)
            else:
                self._context.end_run(problem)
        elif not boot and not refusal.answers:
            self._send_in_full_at(max(self._refusals.confirm_at, now))

    def pause(self, why: str) -> None:
        """Take no new work until `resume` is called."""
        if self.backoff.paused:
            return
        log.info("the device takes no new work: %s", why)
        self.backoff.pause()
        self.next_at = NEVER
        self._timer.bye_sent()
        self._context.link.send(Bye(f"{DisconnectReason.PAUSED.value}: {why}"))

    def pause_silently(self) -> None:
        """Send no hello until `resume` is called."""
        self.backoff.pause()
        self.next_at = NEVER

    def resume(self) -> None:
        if self.backoff.paused:
            self.backoff.resume(self._context.now)
            self.next_at = self._context.now
            # The next hello will not name the plan, so the coordinator replies with a welcome. The welcome shows
            # that the hello has arrived.
            self._run.forget_welcome()

    def back_off(self) -> float:
        """Begin a pause because the device could not do its work, and return the seconds of the pause."""
        seconds = self.backoff.begin(self._context.now)
        self.next_at = self.backoff.until
        self._timer.bye_sent()
        return seconds

    def bye_sent(self) -> None:
        """Record that the device has sent a bye, or is about to send a bye."""
        self._timer.bye_sent()

    def job_dropped(self) -> None:
        self._timer.forget_last_here()

    def _send_in_full_at(self, time: float) -> None:
        self._sender.name_classes_in_full()
        self.next_at = time
