"""Link many devices over one connection: their topics, their processes, and the checks of their messages."""

from __future__ import annotations

import contextlib
from collections.abc import Collection

from protofleet.protocol.link.base import INLINE, Link
from protofleet.protocol.link.block_budget import BlockBudget
from protofleet.protocol.link.broadcast import ErrorScope
from protofleet.protocol.link.clocks import Clock, days
from protofleet.protocol.link.rate_limit import RateLimiter
from protofleet.protocol.link.replay_window import ReplayWindow
from protofleet.protocol.security.envelope import Header
from protofleet.protocol.security.keys import Identity, Keyring
from protofleet.protocol.transport.base import Transport
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
    """The part of a coordinator's link that knows the topics, the processes and the faults of each device.

    All runs of the coordinator share it, with its limits on frames and on blocks in flight.
    """

    def __init__(
        self, me: Identity, keyring: Keyring, topics: Topics, transport: Transport, sealed: bool,
        clock: Clock | None, who: str,
    ) -> None:  # fmt: skip
        super().__init__(me, keyring, topics, transport, sealed, clock)
        self.epoch, self.who = me.boot, who
        self.rate_limiter, self.block_budget = RateLimiter(keyring), BlockBudget()
        self.error_scope: ErrorScope = lambda device: contextlib.nullcontext()
        # Device -> forms of messages that the device understands.
        self.device_forms: dict[str, frozenset[str]] = {}
        self._subscribed_topics = set(topics.coordinator_subscriptions())

    def understands(self, device: str, form: str) -> bool:
        return form in self.device_forms.get(device, ())

    def has_heard(self, device: str) -> bool:
        """Return whether a verified frame of this device has arrived."""
        return device in self._windows

    def subscribe_except(self, unheard: Collection[str]) -> None:
        """Subscribe to all devices except `unheard`, so that the broker queues no messages of `unheard`.

        A topic filter of MQTT cannot exclude a device. So the link subscribes to the topics of all remaining devices.
        """
        topics, wanted = self.topics, set(self.topics.coordinator_subscriptions())
        if unheard:
            heard = [device for device in self.keyring if device not in unheard and device != COORDINATOR]
            wanted = {
                topics.coord_state,
                topics.coord_probe,
                *map(topics.up, heard),
                *map(topics.device_state, heard),
            }
        for topic in sorted(wanted - self._subscribed_topics):
            self.transport.subscribe(topic)
        for topic in sorted(self._subscribed_topics - wanted):
            self.transport.unsubscribe(topic)
        self._subscribed_topics = wanted

    def device_of_topic(self, topic: str) -> str:
        """Return the only device that may publish on this topic, or "" if there is none."""
        place = self.topics.parse(topic)
        return place.device if place else ""

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
