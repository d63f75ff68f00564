"""The part of a link that belongs to one run: the run's name, its counts of bytes, and its sizes of blocks.

A device has one such part. A coordinator has one for each run that is open. All parts share the identity, the keys,
the sequence numbers and the connection of their party.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace

from protofleet.protocol.link.base import FRAME_OVERHEAD, INLINE, MAX_FRAME, FrameOutcome, Link, result_of
from protofleet.protocol.link.block_count import CountedSpan
from protofleet.protocol.link.block_qos import BlockQos
from protofleet.protocol.link.fetch import ObjectFetch
from protofleet.protocol.link.meter import DOWN, UP, Meter
from protofleet.protocol.storage.store import ObjectStore
from protofleet.protocol.transport.address import BrokerError
from protofleet.protocol.transport.base import packet_bytes
from protofleet.protocol.wire import blocks, codec, forms
from protofleet.protocol.wire.arrays import ON_THE_WIRE
from protofleet.protocol.wire.codec import Attachment
from protofleet.protocol.wire.layout import Layout
from protofleet.protocol.wire.messages import Manifest, Message
from protofleet.protocol.wire.names import EVERYBODY
from protofleet.protocol.wire.reasons import Reason, Rejected


class RunPart:
    """The part of a link that sends and receives the messages of one run.

    `direction` (UP or DOWN) is the direction of the frames that this end sends.
    """

    def __init__(self, party: Link, direction: str, run: str = "") -> None:
        self.party, self.direction, self.run = party, direction, run
        self.peer_direction = DOWN if direction == UP else UP
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

    def seal(
        self, message: Message, recipient: str = EVERYBODY, attachment: Attachment = None, receive: bytes = b""
    ) -> bytes:  # fmt: skip
        """Return the frame of a message in the name of this run; `receive` is the recipient's key, if it is known."""
        return self.party.next_frame(message, self.run, self.metric_names, recipient, attachment, receive)

    def adapt(self, max_packet: int, largest: int = 0, indirect: bool = True, personal: int = 0) -> None:
        """Fit the sizes of blocks and inline bodies to the largest packet that the broker accepts.

        Raise BrokerError if an object of `largest` bytes cannot be sent through this broker, or a task with
        `personal` bytes for one device only. `indirect` says whether the other side accepts a manifest that is sent
        as an object. A manifest is sent in this way if it is too large for a message.
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
        if personal > capacity:
            raise BrokerError(
                f"the broker accepts packets of {max_packet} bytes, but a task of a masked sum has {personal} bytes "
                f"for one device only; raise the broker's packet limit to {personal + FRAME_OVERHEAD} or more, or "
                "ask fewer devices in a round (policy.cohort)"
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
        self.party.transport.reject_connection(f"{error}; {again}")

    def with_new_key(self, manifest: Manifest) -> Manifest:
        """Return the manifest; on a sealed link, give it a new key for the blocks of the object.

        Raise BrokerError if the blocks do not fit into the broker's packets.
        """
        if not self.takes_blocks_of(manifest):
            raise BrokerError(too_large(manifest.size, self.block, self._capacity))
        return replace(manifest, key=os.urandom(blocks.KEY)) if self.party.sealed else manifest

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

    def count_overflow(self, frames: int) -> None:
        """Count frames that were dropped because the receive queue was full."""
        self.meter.messages[self.peer_direction, "unreadable", Reason.FLOOD.value] += frames
        self.meter.rejected[Reason.FLOOD] += frames

    def count_banned(self, frames: int) -> None:
        """Count frames of senders that are banned."""
        self.meter.messages[self.peer_direction, "unreadable", Reason.BANNED.value] += frames
        self.meter.rejected[Reason.BANNED] += frames

    def receiver_on(self, topic: str) -> str | None:
        """Return the device that receives a frame on this topic. The bytes are counted under this device.

        Return "" for a frame to all devices. Return None if this link does not count bytes by device.
        """
        return None

    def sender_on(self, topic: str) -> str | None:
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
            device=self.receiver_on(topic),
        )  # fmt: skip
        self.party.transport.publish(topic, frame, retain, qos)

    def count_frame(self, topic: str, frame: bytes, kind: str, take: Callable[[], FrameOutcome]) -> bool:
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
            sender = self.sender_on(topic)
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
