"""Hellos, and the refusals that answer them: none is sent without a connection, or while no work is taken."""

from __future__ import annotations

import logging

from protofleet.edge_client.context import DeviceContext
from protofleet.edge_client.conversation.hello import HelloSender
from protofleet.edge_client.conversation.hello_timer import HelloTimer
from protofleet.edge_client.conversation.old_messages import RefusalCheck
from protofleet.edge_client.conversation.retry_backoff import RetryBackoff
from protofleet.edge_client.current_run import CurrentRun
from protofleet.protocol.wire.messages import HERE, Bye, Message, Receipt, Refusal, State, Task, Welcome
from protofleet.protocol.wire.printable import printable
from protofleet.protocol.wire.reasons import DisconnectReason

log = logging.getLogger("protofleet.device")

NEVER = float("inf")


class HelloExchange:
    def __init__(self, context: DeviceContext, run: CurrentRun, sender: HelloSender) -> None:
        self._context, self._run, self._sender = context, run, sender
        self._timer, self._refusals = HelloTimer(), RefusalCheck()
        self.backoff = RetryBackoff(context.link.me.name)
        self.next_at = NEVER

    def connected(self) -> None:
        self._context.connected = True
        self._sender.name_classes_in_full()
        self._timer.expect_frequent()
        link = self._context.link
        link.publish(link.topics.device_state(link.me.name), State(True), retain=True)
        self.send()

    def disconnected(self) -> None:
        self._context.connected, self.next_at = False, NEVER

    def send(self) -> None:
        """At once, or when the device takes work again."""
        now, link = self._context.now, self._context.link
        if now < self.backoff.until:
            self.next_at = self.backoff.until
            return
        self._sender.send(self._run.plan if self._run.is_welcome(link.run, link.epoch) else None)
        self._refusals.hello_sent(link.me.boot, link.last_sequence, now)
        self._timer.hello_sent(now)
        self.next_at = self._timer.next_hello(now)

    def received(self, message: Message, epoch: int) -> None:
        """Whatever the coordinator says shows when the next hello is due."""
        self._timer.coordinator_is(epoch)
        match message:
            case State(online=True, reason=reason, now=status) if reason == HERE:
                self._timer.coordinator_here(status)
            case State():
                self._timer.expect_frequent()
            case Welcome():
                self._timer.welcomed()
        if isinstance(message, (Welcome, Task, Receipt)):
            self._refusals.contradicted()
        if self._context.connected:  # else it says hello as soon as it is
            self.next_at = max(self._timer.next_hello(self._context.now), self.backoff.until)

    def refused(self, refusal: Refusal) -> None:
        """With a boot it says itself whether it is meant for this process."""
        self._context.keep_last_heard(durable=True)
        now, boot, mine = self._context.now, refusal.boot, self._context.link.me.boot
        counts = (
            self._context.state.is_superseded(boot, mine) if boot else self._refusals.counts(refusal, now)
        )
        if counts and refusal.answers and self._sender.by_hash:
            self._send_in_full_at(now)
        elif counts:
            self._context.end(f"the coordinator refuses this device: {printable(refusal.reason)}")
        elif not boot and not refusal.answers:
            self._send_in_full_at(max(self._refusals.ask_at, now))

    def hold(self, why: str) -> None:
        """No work is taken until `resume`."""
        if self.backoff.on_hold:
            return
        log.info("taking no new work: %s", why)
        self.backoff.hold()
        self.next_at = NEVER
        self._timer.away()
        self._context.link.send(Bye(f"{DisconnectReason.PAUSED.value}: {why}"))

    def resume(self) -> None:
        if self.backoff.on_hold:
            self.backoff.resume(self._context.now)
            self.next_at = self._context.now
            self._run.forget_welcome()  # that hello asks for a welcome, which tells that it was heard

    def back_off(self) -> float:
        """The device could not do its work: seconds until it asks for work again."""
        seconds = self.backoff.begin(self._context.now)
        self.next_at = self.backoff.until
        self._timer.away()
        return seconds

    def away(self) -> None:
        """The device has said that it leaves its work."""
        self._timer.away()

    def expect_frequent(self) -> None:
        """The device has been away from its work."""
        self._timer.expect_frequent()

    def _send_in_full_at(self, time: float) -> None:
        self._sender.name_classes_in_full()
        self.next_at = time
