"""Turn messages into frames and frames into messages, in the same way at both ends.

This module seals messages, recognises duplicates and counts bytes. It does not use sockets or a clock. Frames
leave through a Transport. The current time is the argument `now`, and `wake_at` is the time at which the
caller must call `wake`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from protofleet.protocol.link import indirect_manifest
from protofleet.protocol.link.block_count import CountedSpan
from protofleet.protocol.link.block_qos import BlockQos
from protofleet.protocol.link.clocks import Clock
from protofleet.protocol.link.fetch import ObjectFetch
from protofleet.protocol.link.meter import DOWN, UP, Meter
from protofleet.protocol.link.replay_window import ReplayWindow
from protofleet.protocol.security.envelope import (  # fmt: skip
    MAJOR,
    MINOR,
    OPEN,
    SEALED,
    Header,
    contents,
    read_header,
    seal,
    verified,
)
from protofleet.protocol.security.holders import other_keys, same_record
from protofleet.protocol.security.keyfiles import KeyFileError
from protofleet.protocol.security.keys import Identity, Keyring, changed, why_unknown
from protofleet.protocol.storage.store import ObjectStore
from protofleet.protocol.transport.address import BrokerError
from protofleet.protocol.transport.base import Transport, Will, packet_bytes
from protofleet.protocol.wire import blocks, codec, forms
from protofleet.protocol.wire.arrays import ON_THE_WIRE
from protofleet.protocol.wire.codec import Attachment
from protofleet.protocol.wire.layout import Layout
from protofleet.protocol.wire.messages import IndirectManifest, Manifest, Message, Offer, State
from protofleet.protocol.wire.names import EVERYBODY
from protofleet.protocol.wire.reasons import Reason, Rejected
from protofleet.protocol.wire.topics import Topics

INLINE: Final = 48 * 1024  # bytes; a body up to this size is sent inside its message
FRAME_OVERHEAD: Final = 4096  # bytes of a frame that are reserved for header, signature and scalars
# Largest number of bytes in a frame. The signature of a larger frame is not even checked.
MAX_FRAME: Final = codec.MAX_PAYLOAD + FRAME_OVERHEAD
MAX_OBJECT: Final = 1 << 30
# A message that was refused for one of these reasons may be valid with a newer record of its sender.
CURED_BY_NEW_RECORD: Final = frozenset({Reason.BAD_SIGNATURE, Reason.STALE_BOOT, Reason.BOOT_AHEAD})
# Largest number of blocks of one object that are in flight at a time. Together, these blocks have 4 MiB. This is
# enough for 600 Mbit/s with a round-trip time of 50 ms.
WINDOW: Final = codec.MAX_ASKED


@dataclass(frozen=True, slots=True)
class Received:
    """A message that passed every check of the link."""

    sender: str
    message: Message
    run: str
    epoch: int
    object: bytes = b""  # name of the message's arrays in the store; empty until all arrays have arrived
    sequence: int = 0  # number of the message within its boot; every MQTT will has the number 0
    boot: int = 0


@dataclass(frozen=True, slots=True)
class FrameOutcome:
    """The result of a received frame."""

    tensors: Mapping[str, int] = field(default_factory=dict)  # bytes of arrays by kind
    # Bytes of the frame's block. `tensors` does not include these bytes. They are counted through `spans` when the
    # table of the object is known.
    held: int = 0
    spans: Sequence[CountedSpan] = ()
    new: bool = True  # False for a duplicate
    # False for a block that this device does not need. Blocks on a topic for all devices reach every device.
    for_us: bool = True
    first: bool = True  # False if an earlier message contained the same tensors
    fault: Reason | None = None  # reason why an update cannot be used; the device receives this reason


def result_of(outcome: FrameOutcome) -> str:
    if not outcome.for_us:
        return "for_others"
    return "accepted" if outcome.new else "duplicate"


class Link:
    """The base class of the links at both ends.

    `direction` (UP or DOWN) is the direction of the frames that this end sends.
    """

    def __init__(
        self, me: Identity, keyring: Keyring, topics: Topics, transport: Transport, direction: str,
        sealed: bool = True, clock: Clock | None = None,
    ) -> None:  # fmt: skip
        """Create a link of the party `me`.

        If `sealed`, a message to one recipient is encrypted for this recipient, and received messages that
        are not encrypted are refused.
        """
        self.me, self.keyring, self.topics, self.transport = me, keyring, topics, transport
        self.direction, self.sealed, self.clock = direction, sealed, clock or Clock()
        self.run, self.epoch = "", 0
        self.meter = Meter()
        # The run's metrics. A message contains the index of a metric in this list instead of the metric's
        # name.
        self.metric_names: tuple[str, ...] = ()
        # Kinds by which bytes are counted. When a run begins, the kinds of its method replace these kinds.
        self.kinds = ON_THE_WIRE
        # Bytes of a block: `most_block` is the configured size, and `block` is a size that fits into the
        # packets of this broker.
        self.most_block = self.block = blocks.DEFAULT_BLOCK
        self.block_qos = BlockQos()
        self.inline, self._capacity = INLINE, MAX_FRAME
        # Bytes of data that fit into one packet: `_last_capacity` at the last broker, and `_best_capacity` at
        # the best usable broker so far.
        self._last_capacity = self._best_capacity = 0
        self._sequence = 0
        # The place where this coordinator runs. The coordinator's `State` messages contain this place, so that a
        # second coordinator can report where the first coordinator runs.
        self.who = ""
        self._windows: dict[str, ReplayWindow] = {}
        self.peer_direction = DOWN if self.direction == UP else UP

    def adapt(self, max_packet: int, largest: int = 0, indirect: bool = True) -> None:
        """Fit the sizes of blocks and inline bodies to the largest packet that the broker accepts.

        Raise BrokerError if an object of `largest` bytes cannot be sent through this broker. `indirect` says
        whether the other side accepts a manifest that is sent as an object. A manifest is sent in this way if
        it is too large for a message.
        """
        self._last_capacity = capacity = max_packet - FRAME_OVERHEAD
        if capacity < 1024:
            raise BrokerError(
                f"the broker accepts packets of {max_packet} bytes, but packets of 5120 bytes are needed"
            )
        block, most = block_size_within(capacity, self.most_block), self._best_capacity
        if blocks.block_size(largest, block) > capacity:
            raise BrokerError(too_large(largest, block, capacity))
        if (
            not indirect
            and manifest_hash_bytes(largest, most, self.most_block) <= most
            and manifest_hash_bytes(largest, capacity, self.most_block) > capacity
        ):
            raise BrokerError(
                f"the broker accepts packets of {max_packet} bytes, but the manifest of an object of {largest} bytes "
                "is larger, and a participant cannot receive a manifest as an object; raise the broker's packet "
                "limit, or update the participant's software"
            )
        self.inline, self._capacity, self.block = min(INLINE, capacity), capacity, block
        self._best_capacity = max(self._best_capacity, capacity)

    def reject_connection(self, error: BrokerError) -> None:
        """Leave a broker whose packet limit is too small.

        Raise the error if this process never had a broker with a usable limit, so that the process ends.
        Otherwise the transport tries again.
        """
        if not self._best_capacity:
            raise error
        again = "the broker accepted larger packets before, so this process tries again"
        if self._last_capacity >= self._best_capacity:
            again = "the largest object has grown; this process tries again until the broker accepts larger packets"
        self.transport.reject_connection(f"{error}; {again}")

    def seal(
        self,
        message: Message,
        recipient: str = EVERYBODY,
        attachment: Attachment = None,
        receive: bytes = b"",
    ) -> bytes:
        """Return the frame of a message, and give the frame the next sequence number.

        `receive` is the recipient's key. A caller that has looked up the key passes it, because the key may
        have been removed from the keyring in the meantime.
        """
        self._sequence += 1  # sequence numbers begin with 1
        return self._sealed(message, self._sequence, recipient, attachment, receive)

    def _sealed(
        self, message: Message, sequence: int, recipient: str = EVERYBODY, attachment: Attachment = None,
        receive: bytes = b"",
    ) -> bytes:  # fmt: skip
        place = codec.task_id_of(message)
        suite = SEALED if self.sealed and recipient != EVERYBODY else OPEN
        header = Header(
            MAJOR, MINOR, suite, codec.KINDS[type(message)], self.topics.federation, self.run, self.epoch,
            self.me.name, self.me.boot, sequence, recipient, place.round, place.phase, place.base,
        )  # fmt: skip
        if suite == SEALED and not receive:
            receive = self._receive_of(recipient)
        return seal(header, codec.encode(message, attachment, self.metric_names), self.me.keys.sign, receive)

    def _receive_of(self, recipient: str) -> bytes:
        """Return the key that seals messages to `recipient`.

        Raise KeyFileError if the key is not known, because this process cannot send anything without the key.
        """
        if (known := self.keyring.get(recipient)) is None:
            why = (
                why_unknown(self.keyring, recipient)
                or f"the record of {recipient!r} was missing for a moment"
            )
            raise KeyFileError(f"{why}; `protofleet enrol install` installs an enrolment")
        return known.receive

    def with_new_key(self, manifest: Manifest) -> Manifest:
        """Return the manifest; on a sealed link, give it a new key for the blocks of the object.

        Raise BrokerError if the blocks do not fit into the broker's packets.
        """
        if not self.takes_blocks_of(manifest):
            raise BrokerError(too_large(manifest.size, self.block, self._capacity))
        return replace(manifest, key=os.urandom(blocks.KEY)) if self.sealed else manifest

    def takes_blocks_of(self, manifest: Manifest) -> bool:
        """Return whether the blocks of this manifest fit into the packets that the broker accepts."""
        return manifest.block <= self._capacity

    def fits_in_message(self, packed: bytes) -> bool:
        """Return whether these bytes fit into a message together with the message's scalars."""
        return len(packed) <= self._capacity

    def fits(self, manifest: Manifest) -> bool:
        """Return whether the manifest fits into a message; otherwise the manifest is sent as an object."""
        return codec.SHORT_HASH * len(manifest.hashes) <= self._capacity

    def still_fits(self, *manifests: Manifest) -> bool:
        """Return whether an object can still be sent in the same blocks as before.

        The first manifest describes the object. If the first manifest is itself sent as an object, the second
        manifest describes the first manifest.
        """
        return all(self.takes_blocks_of(one) for one in manifests) and (
            len(manifests) > 1 or self.fits(manifests[0])
        )

    def required_forms(self, size: int) -> dict[str, str]:
        """Return the forms that a device must understand before it can receive an object of `size` bytes.

        The result maps each form to the reason why the form is necessary.

        Raise BrokerError if the object cannot be sent in any form.
        """
        block = blocks.block_size(size, self.block)
        if block > self._capacity:
            raise BrokerError(too_large(size, self.block, self._capacity))
        needed = codec.SHORT_HASH * -(-size // block)
        if needed <= self._capacity:
            return {}
        most, least = self._capacity + FRAME_OVERHEAD, needed + FRAME_OVERHEAD
        return {
            forms.MANIFEST: f"the broker accepts packets of {most} bytes, but the manifest of an object of "
            f"{size} bytes in blocks of {block} takes {needed}; raise the broker's limit to {least}, "
            "or update the device's software"
        }

    def _check_offer(self, offer: Offer) -> None:
        """Raise Rejected if the offered object is too large, or if it is not sealed on a sealed link."""
        if offer.size > MAX_OBJECT:
            raise Rejected(
                Reason.TOO_LARGE,
                f"{offer.size} bytes are offered, but an object may have at most {MAX_OBJECT}",
            )
        if isinstance(offer, IndirectManifest):
            if offer.manifest.size > indirect_manifest.MAX_BYTES:
                raise Rejected(
                    Reason.TOO_LARGE,
                    f"a manifest of {offer.manifest.size} bytes is offered, but the limit is "
                    f"{indirect_manifest.MAX_BYTES}",
                )
            self._check_offer(offer.manifest)
        if self.sealed and not offer.key:
            raise Rejected(
                Reason.NOT_SEALED, f"the offer of {offer.object.hex()[:16]} contains no key for its blocks"
            )

    def will(self, topic: str) -> Will:
        """Return the will of this end.

        The will has the sequence number 0, because the broker may never publish this message.
        """
        return Will(topic, self._sealed(State(False, "connection lost", self.who), 0))

    def publish(
        self, topic: str, message: Message, recipient: str = EVERYBODY, attachment: Attachment = None,
        tensors: dict[str, int] | None = None, fresh: bool = True, retain: bool = False, receive: bytes = b"",
    ) -> None:  # fmt: skip
        frame = self.seal(message, recipient, attachment, receive)
        self._publish_frame(topic, frame, tensors or {}, fresh, retain)
        self.meter.count_message(self.direction, codec.KINDS[type(message)], "sent")

    def layout_of(self, store: ObjectStore, name: bytes) -> Layout:
        """Return the layout of an object: the sizes and kinds of its parts, in their order."""
        return store.open(name).layout_by(self.kinds)

    def send_block(
        self, topic: str, store: ObjectStore, manifest: Manifest, index: int, fresh: bool,
        layout: Layout | None = None,
    ) -> None:  # fmt: skip
        """Send one block of an object.

        `layout` is the layout of the object, if the caller has it already.
        """
        start, layout = index * manifest.block, layout or self.layout_of(store, manifest.object)
        tensors = layout.within(start, start + blocks.length_of(manifest, index))
        frame = blocks.pack(manifest, index, store.read_block(manifest, index))
        self._publish_frame(topic, frame, tensors, fresh, qos=self.block_qos.qos)
        self.meter.count_message(self.direction, "block", "sent")

    def open(self, topic: str, frame: bytes) -> tuple[Header, Message, Attachment] | None:
        """Verify and decode a message; return None for a duplicate.

        Raise Rejected if the frame or the message has a fault.
        """
        if len(frame) > MAX_FRAME:
            raise Rejected(
                Reason.TOO_LARGE, f"the frame has {len(frame)} bytes, but the limit is {MAX_FRAME}"
            )
        try:
            return self._open(topic, frame)
        except Rejected as fault:
            # A device whose record was renewed may send a message before this process has read the new
            # record.
            if fault.reason not in CURED_BY_NEW_RECORD or not changed(
                self.keyring, read_header(frame)[0].sender
            ):
                raise
        return self._open(topic, frame)

    def _open(self, topic: str, frame: bytes) -> tuple[Header, Message, Attachment] | None:
        header, start, known = verified(frame, self.keyring)
        # This check is first, because the lines below create state for the header's sender.
        if header.federation != self.topics.federation:
            raise Rejected(Reason.WRONG_FEDERATION, header.federation[:64])
        window = self._window(header, known.holder)
        self._check_header(header, topic)
        try:
            message, attachment = self._contents(frame, header, start)
        except Rejected as fault:
            self._on_unusable(header, fault)
            raise
        # Every MQTT will has the sequence number 0. So an MQTT will is accepted even if the number 0 was seen before.
        will = isinstance(message, State) and header.sequence == 0
        if not window.is_new(header.boot, header.sequence) and not will:
            return None
        return header, message, attachment

    def _contents(self, frame: bytes, header: Header, start: int) -> tuple[Message, Attachment]:
        if self.sealed and header.suite == OPEN and header.kind != "state":
            raise Rejected(
                Reason.NOT_SEALED,
                f"a {header.kind} of {header.sender} is not sealed, but this side accepts only sealed messages",
            )
        payload = contents(frame, header, start, self.me.keys.receive)
        place = codec.TaskId(header.round, header.phase, header.base)
        message, attachment = codec.decode(header.kind, payload, header.sender, place, self.metric_names)
        self._check_content(message, attachment)
        return message, attachment

    def _window(self, header: Header, holder: str) -> ReplayWindow:
        """Return the window of the header's sender.

        New keys start a new window. A new record of the same keys also starts a new window if the boot of the
        old window came from a wrong clock. If the record of a process is renewed while the process runs, the
        process keeps its window.
        """
        window = self._windows.get(header.sender)
        if window is None or (header.boot != window.boot and self._may_be_replaced(window, holder)):
            window = self._windows[header.sender] = ReplayWindow()
        window.holder = holder
        return window

    def _may_be_replaced(self, window: ReplayWindow, holder: str) -> bool:
        if not window.holder or same_record(window.holder, holder):
            return False
        return other_keys(window.holder, holder) or self.clock.ahead(window.boot) > 0

    def count_overflow(self, frames: int) -> None:
        """Count frames that were dropped because the receive queue was full."""
        self.meter.messages[self.peer_direction, "unreadable", Reason.FLOOD.value] += frames
        self.meter.rejected[Reason.FLOOD] += frames

    def count_banned(self, frames: int) -> None:
        """Count frames of senders that are banned."""
        self.meter.messages[self.peer_direction, "unreadable", Reason.BANNED.value] += frames
        self.meter.rejected[Reason.BANNED] += frames

    def last_heard(self, sender: str) -> tuple[int, int]:
        """Return the boot of a sender and its newest sequence number.

        The caller stores both numbers together with the accepted message.
        """
        window = self._windows.get(sender, ReplayWindow())
        return window.boot, window.newest

    def holder_of(self, sender: str) -> str:
        """Return the holder of the name `sender` at the time of the newest message from `sender`."""
        return self._windows.get(sender, ReplayWindow()).holder

    @property
    def last_sequence(self) -> int:
        """Return the sequence number of the message that was sent last."""
        return self._sequence

    def missing(self) -> dict[str, int]:
        """Return the number of missing messages by sender.

        These messages were sent while the sender and this end were connected, and have not arrived.
        """
        return {sender: window.missing for sender, window in self._windows.items()}

    def reconnected(self) -> None:
        """Restart the count of missing messages, because this end has connected again.

        Messages that others sent while this end was not connected are not missing.
        """
        for window in self._windows.values():
            window.count_from_next()

    def remember(self, heard: Mapping[str, tuple[int, int, str]]) -> None:
        """Treat the messages that an earlier process received as duplicates.

        `heard` maps each sender to its boot, its newest sequence number and the holder of its name.
        """
        for sender, (boot, newest, holder) in heard.items():
            self._windows[sender] = ReplayWindow.up_to(boot, newest, holder)

    def _check_header(self, header: Header, topic: str) -> None:
        raise NotImplementedError

    def _check_content(self, message: Message, attachment: Attachment) -> None:
        """Raise Rejected for a message that this end cannot use. The message is not marked as seen yet."""
        raise NotImplementedError

    def _on_unusable(self, header: Header, fault: Rejected) -> None:
        """Handle a message whose content has a fault.

        The signature of the header is valid, and the message is not marked as seen.
        """

    def _receiver(self, topic: str) -> str | None:
        """Return the device that receives a frame on this topic. The bytes are counted under this device.

        Return "" for a frame to all devices. Return None if this link does not count bytes by device.
        """
        return None

    def _sender_on(self, topic: str) -> str | None:
        """Return the device that sent a frame on this topic.

        Return "" for an unknown sender. Return None if this link does not count bytes by device.
        """
        return None

    def _publish_frame(
        self,
        topic: str,
        frame: bytes,
        tensors: dict[str, int],
        fresh: bool,
        retain: bool = False,
        qos: int = 1,
    ) -> None:
        self.meter.count_packet(
            self.direction, packet_bytes(topic, len(frame)), len(frame), tensors, fresh,
            device=self._receiver(topic),
        )  # fmt: skip
        self.transport.publish(topic, frame, retain, qos)

    def _count_frame(self, topic: str, frame: bytes, kind: str, take: Callable[[], FrameOutcome]) -> bool:
        """Run `take` on a received frame and count the frame exactly once.

        Return False for a duplicate.
        """
        result, outcome = "accepted", FrameOutcome(new=False)
        try:
            outcome = take()
            result = outcome.fault.value if outcome.fault else result_of(outcome)
        except Rejected as fault:
            result = fault.reason.value
            self.meter.rejected[fault.reason] += 1
            raise
        finally:
            packet, fresh = packet_bytes(topic, len(frame)), outcome.new and outcome.first
            sender = self._sender_on(topic)
            self.meter.count_packet(
                self.peer_direction, packet, len(frame), outcome.tensors, fresh, outcome.held, sender
            )
            self._count_spans(outcome.spans, sender)
            self.meter.count_message(self.peer_direction, kind, result)
        return outcome.new

    @property
    def waiting_bytes(self) -> int:
        """Return the number of received bytes that are not counted yet.

        The bytes of an object cannot be counted by kind before the object's table has arrived.
        """
        return 0

    def _count_spans(self, spans: Sequence[CountedSpan], device: str | None) -> None:
        for span in spans:
            self.meter.count_bytes(self.peer_direction, span.size, span.tensors, span.fresh, device)

    def end_fetch(self, fetch: ObjectFetch, forget: bool, device: str | None = None) -> None:
        """Stop receiving an object, and count the bytes that arrived before its table."""
        self._count_spans(fetch.count.end(), device)
        fetch.partial.abandon(forget)

    def kind_of(self, frame: bytes) -> str:
        """Return the kind under which a frame is counted, before the frame is verified."""
        if blocks.is_block(frame):
            return "block"
        try:
            kind = read_header(frame)[0].kind
        except Rejected:
            return "unreadable"
        return kind if kind in codec.DECODERS else "unreadable"


def too_large(size: int, default: int, capacity: int) -> str:
    """Return a message that says why the broker cannot transport an object and which packet limit it needs."""
    block = blocks.block_size(size, default)
    return (
        f"an object of {size} bytes has at most {codec.MAX_BLOCKS} blocks, so each block has {block} bytes, but the "
        f"broker accepts packets of {capacity + FRAME_OVERHEAD}; raise its limit to {block + FRAME_OVERHEAD} or more"
    )


def block_size_within(capacity: int, block: int) -> int:
    while block > capacity > 0:
        block //= 2
    return block


def manifest_hash_bytes(size: int, capacity: int, block: int) -> int:
    """Return how many bytes the block hashes need in a manifest. The object has `size` bytes."""
    return codec.SHORT_HASH * -(-size // blocks.block_size(size, block_size_within(capacity, block)))
