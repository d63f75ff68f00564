"""Send to many devices over one link, check the headers of their messages, and send refusals."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection

from protofleet.protocol.link.base import INLINE, Link
from protofleet.protocol.link.broadcast import ErrorScope
from protofleet.protocol.link.clocks import Clock, days
from protofleet.protocol.link.meter import DOWN
from protofleet.protocol.link.rate_limit import RateLimiter
from protofleet.protocol.link.replay_window import ReplayWindow
from protofleet.protocol.security.envelope import Header, read_header
from protofleet.protocol.security.keys import Identity, Keyring
from protofleet.protocol.transport.base import Transport, packet_bytes
from protofleet.protocol.wire import codec, forms
from protofleet.protocol.wire.codec import Attachment
from protofleet.protocol.wire.messages import (
    BlockRequest,
    Bye,
    Hello,
    IndirectManifest,
    Manifest,
    Message,
    Refusal,
    State,
    Update,
)
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.protocol.wire.reasons import Reason, Rejected
from protofleet.protocol.wire.topics import Topics


class LinkToDevices(Link):
    """The part of a coordinator's link that knows the topics, the processes and the faults of each device."""

    def __init__(
        self, me: Identity, keyring: Keyring, topics: Topics, transport: Transport, run: str, sealed: bool,
        clock: Clock | None, who: str,
    ) -> None:  # fmt: skip
        super().__init__(me, keyring, topics, transport, DOWN, sealed, clock)
        self.run, self.epoch, self.who = run, me.boot, who
        self.rate_limiter = RateLimiter(keyring)
        self.error_scope: ErrorScope = lambda device: contextlib.nullcontext()
        # Device -> forms of messages that the device understands.
        self.device_forms: dict[str, frozenset[str]] = {}
        self._subscribed_topics = set(topics.coordinator_subscriptions())
        # Called with the topic and the size of each packet before it is sent, and of each received packet that the
        # device of the topic has sent. Rejected frames, duplicates and MQTT wills are left out, because another
        # party may have sent them. None if nothing needs these sizes.
        self.on_packet: Callable[[str, int], None] | None = None

    def understands(self, device: str, form: str) -> bool:
        return form in self.device_forms.get(device, ())

    def subscribe_except(self, unheard: Collection[str]) -> None:
        """Subscribe to all devices except `unheard`, so that the broker queues no messages of `unheard`.

        A topic filter of MQTT cannot exclude a device. So the link subscribes to the topics of all remaining devices.
        """
        topics, wanted = self.topics, set(self.topics.coordinator_subscriptions())
        if unheard:
            heard = [device for device in self.keyring if device not in unheard and device != COORDINATOR]
            wanted = {topics.coord_state, *map(topics.up, heard), *map(topics.device_state, heard)}
        for topic in sorted(wanted - self._subscribed_topics):
            self.transport.subscribe(topic)
        for topic in sorted(self._subscribed_topics - wanted):
            self.transport.unsubscribe(topic)
        self._subscribed_topics = wanted

    def send(self, device: str, message: Message) -> None:
        """Send a message to a device, unless the enrolment of the device has ended.

        The key is looked up only once, because the enrolment may end between two look-ups.
        """
        with self.error_scope(device):
            if (known := self.keyring.get(device)) is not None:
                self.publish(self.topics.down(device), message, device, receive=known.receive)

    def device_of_topic(self, topic: str) -> str:
        """Return the only device that may publish on this topic, or "" if there is none."""
        place = self.topics.parse(topic)
        return place.device if place else ""

    def _publish_frame(
        self, topic: str, frame: bytes, tensors: dict[str, int], fresh: bool, retain: bool = False, qos: int = 1
    ) -> None:  # fmt: skip
        if self.on_packet is not None:
            self.on_packet(topic, packet_bytes(topic, len(frame)))
        super()._publish_frame(topic, frame, tensors, fresh, retain, qos)

    def _receiver(self, topic: str) -> str:
        return self.device_of_topic(topic)

    def _sender_on(self, topic: str) -> str:
        device = self.device_of_topic(topic)
        return (
            device if device in self._windows else ""
        )  # without a verified frame, any party may have chosen this name

    def _note_new_connection(self, header: Header, message: Message) -> None:
        """Restart the count of missing messages when a device connects or changes its coordinator.

        A device may have sent messages before it knew this coordinator, or over a connection that was lost.
        These messages do not count as missing: they had no receiver, and the device repeats the important
        messages.
        """
        # An MQTT will (sequence number 0) does not show that the device has a new connection.
        birth = isinstance(message, State) and message.online
        if header.sequence and (birth or header.epoch != self.epoch):
            self._windows[header.sender].count_from_next()

    def _refuse_older_process(self, device: str) -> None:
        """Send a refusal to the older of two processes with the same name.

        Both processes receive the refusal, and the newer process ignores it.
        """
        boot, _ = self.last_heard(device)
        message = (
            f"a later process uses the name {device} (boot {boot}), or the clock of this process has gone back; "
            "stop all processes with this name, and start one of them again"
        )
        self.send(device, Refusal(message, boot))

    def _window(self, header: Header, holder: str) -> ReplayWindow:
        """Return the window of the sender; first drop a window with an impossible boot.

        A boot is impossible if it is far ahead of the clock and no holder is stored with it. Only old versions of
        this program stored no holder, and old versions did not check boots. A boot with a holder was checked when it
        arrived, so its window stays, even if the boot is ahead of the clock now.
        """
        known = self._windows.get(header.sender, ReplayWindow())
        nobodys = known.holder == "" and self.clock.ahead(known.boot) > 0
        if nobodys and header.boot < known.boot and not self.clock.ahead(header.boot):
            del self._windows[header.sender]
        return super()._window(header, holder)

    def _refuse_boot(self, frame: bytes, message: str) -> None:
        """Send a refusal to a device whose boot is not valid, if the frame is a hello."""
        header, start = read_header(frame)
        with contextlib.suppress(Rejected):
            hello, _ = self._contents(frame, header, start)
            if isinstance(hello, Hello):
                self.send(header.sender, refusal_of(message, hello, header.boot, header.sequence))

    def _check_content(self, message: Message, attachment: Attachment) -> None:
        if not isinstance(message, (Hello, State, Update, BlockRequest, Bye)):
            raise Rejected(
                Reason.MALFORMED, f"a {codec.KINDS[type(message)]} may be sent only by the coordinator"
            )
        if isinstance(message, Update):
            if attachment is None:
                raise Rejected(Reason.MALFORMED, "the update has no arrays")
            if isinstance(attachment, bytes) and len(attachment) > INLINE:
                raise Rejected(
                    Reason.TOO_LARGE,
                    f"an inline body of {len(attachment)} bytes was sent, but the limit is {INLINE}",
                )
            if isinstance(attachment, (Manifest, IndirectManifest)):
                self._check_offer(attachment)

    def _check_header(self, header: Header, topic: str) -> None:
        # The sender must be the device of the topic. Without this check, any party with a key could send this
        # message.
        place, kind = self.topics.parse(topic), "device_state" if header.kind == "state" else "up"
        if place is None or (place.kind, place.device) != (kind, header.sender):
            raise Rejected(
                Reason.WRONG_TOPIC, f"a {header.kind} of {header.sender[:64]} must not be sent on {topic}"
            )
        if header.boot > self.last_heard(header.sender)[0] and (seconds := self.clock.ahead(header.boot)):
            raise Rejected(
                Reason.BOOT_AHEAD,
                f"boot {header.boot} of {header.sender} lies {days(seconds)} ahead of the coordinator's clock: set "
                f"the clock that is wrong; if it is the device's clock, run `protofleet enrol renew {header.sender}` "
                "and install the new record, so that the device's boots are counted from the start",
            )


def refusal_of(message: str, hello: Hello, boot: int, sequence: int) -> Refusal:
    """Return the refusal of a hello.

    If the device understands the form `forms.ANSWERS`, the refusal contains the boot and the sequence number of the
    refused hello. The broker may store the refusal, and deliver it to a later process of the device. With these
    numbers, the later process can ignore the refusal.
    """
    return Refusal(message, answers=(boot, sequence) if forms.ANSWERS in hello.can else ())
