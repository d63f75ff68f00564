"""Messages in, frames out: sealing, duplicates and byte accounting, the same for both ends.

No sockets and no clock: frames leave through a Transport, `now` is an argument, `wake_at` says when to call.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from protofleet.protocol.link import indirect_manifest
from protofleet.protocol.link.clocks import Clock
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
from protofleet.protocol.security.keys import Identity, Keyring, changed
from protofleet.protocol.storage.store import ObjectStore
from protofleet.protocol.transport.address import BrokerError
from protofleet.protocol.transport.base import Transport, Will, packet_bytes
from protofleet.protocol.wire import blocks, codec, forms
from protofleet.protocol.wire.codec import Attachment
from protofleet.protocol.wire.messages import IndirectManifest, Manifest, Message, Offer, State
from protofleet.protocol.wire.names import EVERYBODY
from protofleet.protocol.wire.reasons import Reason, Rejected
from protofleet.protocol.wire.topics import Topics

INLINE: Final = 48 * 1024  # a body up to this size travels inside its message
FRAME_OVERHEAD: Final = 4096  # header, signature and scalars beside an inline body
MAX_FRAME: Final = codec.MAX_PAYLOAD + FRAME_OVERHEAD  # more is not even hashed for its signature
MAX_OBJECT: Final = 1 << 30
# Faults that a newer record of their sender may cure.
BY_THE_RECORD: Final = frozenset({Reason.BAD_SIGNATURE, Reason.STALE_BOOT, Reason.BOOT_AHEAD})
WINDOW: Final = codec.MAX_ASKED  # blocks of one object in flight: 4 MiB, enough for 600 Mbit/s at 50 ms


@dataclass(frozen=True, slots=True)
class Received:
    """A message that passed every check of the link."""

    sender: str
    message: Message
    run: str
    epoch: int
    object: bytes = b""  # name of its arrays in the store, once they are all here
    sequence: int = 0  # 0: a will, said by the broker whenever it likes
    boot: int = 0


@dataclass(frozen=True, slots=True)
class FrameOutcome:
    """What a received frame brought."""

    tensors: Mapping[str, int] = field(default_factory=dict)  # bytes by kind
    new: bool = True  # else it is a duplicate
    ours: bool = True  # else it came by a topic that many share, and others had asked for it
    first: bool = True  # else its tensors came before, in another message
    fault: Reason | None = None  # of an answer that is judged as one all the same


def result_of(taken: FrameOutcome) -> str:
    if not taken.ours:
        return "for_others"
    return "accepted" if taken.new else "duplicate"


class Link:
    """What both ends share. `direction` is the way that this end's own frames go."""

    def __init__(
        self, me: Identity, keyring: Keyring, topics: Topics, transport: Transport, direction: str,
        sealed: bool = True, clock: Clock | None = None,
    ) -> None:  # fmt: skip
        """`sealed`: what has one recipient can be read by it alone, and nothing else is accepted."""
        self.me, self.keyring, self.topics, self.transport = me, keyring, topics, transport
        self.direction, self.sealed, self.clock = direction, sealed, clock or Clock()
        self.run, self.epoch = "", 0
        self.meter = Meter()
        self.metric_names: tuple[str, ...] = ()  # those that both ends know by their places
        self.block = blocks.DEFAULT_BLOCK
        self.inline, self._capacity = INLINE, MAX_FRAME
        self._last_capacity = self._best_capacity = (
            0  # of the last broker, and the largest of those that could be used
        )
        self._sequence = 0
        self.who = ""  # where a coordinator is, for whoever finds another one there
        self._windows: dict[str, ReplayWindow] = {}
        # Objects that came in lately: a block of one of them is a duplicate, not unknown.
        self._recently_completed: deque[bytes] = deque(maxlen=64)
        self._back = DOWN if self.direction == UP else UP

    def adapt(self, max_packet: int, largest: int = 0, indirect: bool = True) -> None:
        """Fit blocks and inline bodies to what the broker takes, if an object of this size goes through.

        `indirect`: whether the other side takes a manifest as an object, where it fits no message.
        """
        self._last_capacity = room = max_packet - FRAME_OVERHEAD
        if room < 1024:
            raise BrokerError(f"the broker takes packets of {max_packet} bytes, at least 5120 are needed")
        block, most = block_size_within(room), self._best_capacity
        if blocks.block_size(largest, block) > room:
            raise BrokerError(too_large(largest, block, room))
        if (
            not indirect
            and hash_bytes_within(largest, most) <= most
            and hash_bytes_within(largest, room) > room
        ):
            raise BrokerError(
                f"the broker takes packets of {max_packet} bytes, and the manifest of {largest} bytes fits none of "
                "them; who takes part takes none as an object"
            )
        self.inline, self._capacity, self.block = min(INLINE, room), room, block
        self._best_capacity = max(self._best_capacity, room)

    def reject_connection(self, error: BrokerError) -> None:
        """The broker's limit is too small: it ends a process that never had a usable one; else it is tried again."""
        if not self._best_capacity:
            raise error
        again = "it took more before, so it is tried again"
        if self._last_capacity >= self._best_capacity:
            again = "what has to be said has grown; it waits, and tries again until the broker takes more"
        self.transport.reject_connection(f"{error}; {again}")

    def seal(
        self,
        message: Message,
        recipient: str = EVERYBODY,
        attachment: Attachment = None,
        receive: bytes = b"",
    ) -> bytes:
        """`receive` is the recipient's key, where the caller has looked it up already: it may be gone since."""
        self._sequence += 1  # from 1
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
            receive = self.keyring[recipient].receive
        return seal(header, codec.encode(message, attachment, self.metric_names), self.me.keys.sign, receive)

    def with_new_key(self, manifest: Manifest) -> Manifest:
        """With a key of its own, for an object that is about to be served."""
        if manifest.block > self._capacity:
            raise BrokerError(too_large(manifest.size, self.block, self._capacity))
        return replace(manifest, key=os.urandom(blocks.KEY)) if self.sealed else manifest

    def fits_in_message(self, packed: bytes) -> bool:
        """Whether a message has room for it beside its scalars."""
        return len(packed) <= self._capacity

    def fits(self, manifest: Manifest) -> bool:
        """Whether a message has room for it; else it is an object itself."""
        return codec.SHORT_HASH * len(manifest.hashes) <= self._capacity

    def still_fits(self, *cut: Manifest) -> bool:
        """Whether an object, and maybe its manifest as another, can go on as they were cut before."""
        return all(one.block <= self._capacity for one in cut) and (len(cut) > 1 or self.fits(cut[0]))

    def required_forms(self, size: int) -> dict[str, str]:
        """Which forms devices need for an object of so many bytes, and why. BrokerError where nothing helps."""
        block = blocks.block_size(size, self.block)
        if block > self._capacity:
            raise BrokerError(too_large(size, self.block, self._capacity))
        needed = codec.SHORT_HASH * -(-size // block)
        if needed <= self._capacity:
            return {}
        most, least = self._capacity + FRAME_OVERHEAD, needed + FRAME_OVERHEAD
        return {
            forms.MANIFEST: f"the broker takes packets of {most} bytes, the manifest of {size} bytes in blocks of "
            f"{block} takes {needed}; raise the broker's limit to {least}, or bring the device up to date"
        }

    def _check_offer(self, offer: Offer) -> None:
        """Of an object: not too large, and sealed where messages have to be."""
        if offer.size > MAX_OBJECT:
            raise Rejected(Reason.TOO_LARGE, f"{offer.size} bytes, over {MAX_OBJECT}")
        if isinstance(offer, IndirectManifest):
            if offer.manifest.size > indirect_manifest.MAX_BYTES:
                raise Rejected(
                    Reason.TOO_LARGE,
                    f"a manifest of {offer.manifest.size} bytes, over {indirect_manifest.MAX_BYTES}",
                )
            self._check_offer(offer.manifest)
        if self.sealed and not offer.key:
            raise Rejected(Reason.NOT_SEALED, f"blocks of {offer.object.hex()[:16]} without a key")

    def will(self, topic: str) -> Will:
        """It has number 0, as nobody knows whether it will ever be sent."""
        return Will(topic, self._sealed(State(False, "connection lost", self.who), 0))

    def publish(
        self, topic: str, message: Message, recipient: str = EVERYBODY, attachment: Attachment = None,
        tensors: dict[str, int] | None = None, fresh: bool = True, retain: bool = False, receive: bytes = b"",
    ) -> None:  # fmt: skip
        frame = self.seal(message, recipient, attachment, receive)
        self._publish_frame(topic, frame, tensors or {}, fresh, retain)
        self.meter.ended(self.direction, codec.KINDS[type(message)], "sent")

    def send_block(self, topic: str, store: ObjectStore, manifest: Manifest, index: int, fresh: bool) -> None:
        start = index * manifest.block
        stop = start + blocks.length_of(manifest, index)
        frame = blocks.pack(manifest, index, store.read(manifest.object, start, stop))
        self._publish_frame(topic, frame, blocks.kinds_in(manifest, start, stop), fresh)
        self.meter.ended(self.direction, "block", "sent")

    def open(self, topic: str, frame: bytes) -> tuple[Header, Message, Attachment] | None:
        """Verify, deduplicate and decode an envelope. None for a duplicate; Rejected for a fault."""
        if len(frame) > MAX_FRAME:
            raise Rejected(Reason.TOO_LARGE, f"a frame of {len(frame)} bytes, over {MAX_FRAME}")
        try:
            return self._open(topic, frame)
        except Rejected as fault:
            # A device that was renewed may speak before its old record is looked at again.
            if fault.reason not in BY_THE_RECORD or not changed(self.keyring, read_header(frame)[0].sender):
                raise
        return self._open(topic, frame)

    def _open(self, topic: str, frame: bytes) -> tuple[Header, Message, Attachment] | None:
        header, start, known = verified(frame, self.keyring)
        if header.federation != self.topics.federation:  # first: what follows may learn from the header
            raise Rejected(Reason.WRONG_FEDERATION, header.federation[:64])
        window = self._window(header, known.holder)
        self._check_header(header, topic)
        try:
            message, attachment = self._contents(frame, header, start)
        except Rejected as fault:
            self._unusable(header, fault)
            raise
        # A will is sealed once and said at every death of its connection, so its number comes again.
        will = isinstance(message, State) and header.sequence == 0
        if not window.is_new(header.boot, header.sequence) and not will:
            return None
        return header, message, attachment

    def _contents(self, frame: bytes, header: Header, start: int) -> tuple[Message, Attachment]:
        if self.sealed and header.suite == OPEN and header.kind != "state":
            raise Rejected(
                Reason.NOT_SEALED, f"a {header.kind} of {header.sender}, which this side takes sealed only"
            )
        payload = contents(frame, header, start, self.me.keys.receive)
        place = codec.TaskId(header.round, header.phase, header.base)
        message, attachment = codec.decode(header.kind, payload, header.sender, place, self.metric_names)
        self._check_content(message, attachment)
        return message, attachment

    def _window(self, header: Header, holder: str) -> ReplayWindow:
        """Other keys, new count. A new record of the same keys lets a count go that only a wrong clock began.

        A process that is renewed while it runs goes on with its own.
        """
        window = self._windows.get(header.sender)
        if window is None or (header.boot != window.boot and self._binds_nobody(window, holder)):
            window = self._windows[header.sender] = ReplayWindow()
        window.holder = holder
        return window

    def _binds_nobody(self, window: ReplayWindow, holder: str) -> bool:
        if not window.holder or same_record(window.holder, holder):
            return False
        return other_keys(window.holder, holder) or self.clock.ahead(window.boot) > 0

    def count_overflow(self, frames: int) -> None:
        """Frames that were dropped unread, as more came than the inbox holds."""
        self.meter.messages[self._back, "unreadable", Reason.FLOOD.value] += frames
        self.meter.rejected[Reason.FLOOD] += frames

    def count_banned(self, frames: int) -> None:
        """Frames of senders that are banned."""
        self.meter.messages[self._back, "unreadable", Reason.BANNED.value] += frames
        self.meter.rejected[Reason.BANNED] += frames

    def last_heard(self, sender: str) -> tuple[int, int]:
        """Boot and newest sequence, to be kept with what was accepted."""
        window = self._windows.get(sender, ReplayWindow())
        return window.boot, window.newest

    def holder_of(self, sender: str) -> str:
        """Who held the name whose count `last_heard` tells."""
        return self._windows.get(sender, ReplayWindow()).holder

    @property
    def last_sequence(self) -> int:
        """Of what was sent last."""
        return self._sequence

    def missing(self) -> dict[str, int]:
        """By sender: messages that were said and have not come."""
        return {sender: window.missing for sender, window in self._windows.items()}

    def remember(self, heard: Mapping[str, tuple[int, int, str]]) -> None:
        """What an earlier process has received is a duplicate here: boot, newest sequence, who held the name."""
        for sender, (boot, newest, holder) in heard.items():
            self._windows[sender] = ReplayWindow.up_to(boot, newest, holder)

    def _check_header(self, header: Header, topic: str) -> None:
        raise NotImplementedError

    def _check_content(self, message: Message, attachment: Attachment) -> None:
        """Refuse what this end could not use, before it is marked as seen."""
        raise NotImplementedError

    def _unusable(self, header: Header, fault: Rejected) -> None:
        """Told of what its sender has signed, and what is at fault; it is not marked as seen."""

    def _publish_frame(
        self, topic: str, frame: bytes, tensors: dict[str, int], fresh: bool, retain: bool = False
    ) -> None:
        self.meter.crossed(self.direction, packet_bytes(topic, len(frame)), len(frame), tensors, fresh)
        self.transport.publish(topic, frame, retain)

    def _count_frame(self, topic: str, frame: bytes, kind: str, take: Callable[[], FrameOutcome]) -> bool:
        """Run `take` on something received and give it exactly one counter. False for a duplicate."""
        result, taken = "accepted", FrameOutcome(new=False)
        try:
            taken = take()
            result = taken.fault.value if taken.fault else result_of(taken)
        except Rejected as fault:
            result = fault.reason.value
            self.meter.rejected[fault.reason] += 1
            raise
        finally:
            packet = packet_bytes(topic, len(frame))
            self.meter.crossed(self._back, packet, len(frame), taken.tensors, taken.new and taken.first)
            self.meter.ended(self._back, kind, result)
        return taken.new

    def kind_of(self, frame: bytes) -> str:
        """What to count a frame as, before anything of it is believed."""
        if blocks.is_block(frame):
            return "block"
        try:
            kind = read_header(frame)[0].kind
        except Rejected:
            return "unreadable"
        return kind if kind in codec.DECODERS else "unreadable"


def too_large(size: int, default: int, room: int) -> str:
    """Why a broker cannot carry an object at all, and what it would have to take."""
    block = blocks.block_size(size, default)
    return (
        f"an object of {size} bytes goes in at most {codec.MAX_BLOCKS} blocks, so of {block} bytes each, and the "
        f"broker takes packets of {room + FRAME_OVERHEAD}; raise its limit to {block + FRAME_OVERHEAD} or more"
    )


def block_size_within(room: int) -> int:
    block = blocks.DEFAULT_BLOCK
    while block > room > 0:
        block //= 2
    return block


def hash_bytes_within(size: int, room: int) -> int:
    """Bytes that they take in the manifest of an object of this size."""
    return codec.SHORT_HASH * -(-size // blocks.block_size(size, block_size_within(room)))
