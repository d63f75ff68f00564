"""Turn messages into frames and frames into messages, in the same way at both ends.

This module seals messages and recognises duplicates. It does not use sockets or a clock. Frames
leave through a Transport. The current time is the argument `now`, and `wake_at` is the time at which the
caller must call `wake`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from protofleet.protocol.link import indirect_manifest
from protofleet.protocol.link.block_count import CountedSpan
from protofleet.protocol.link.clocks import Clock
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
from protofleet.protocol.transport.base import Transport, Will
from protofleet.protocol.wire import codec
from protofleet.protocol.wire.codec import Attachment
from protofleet.protocol.wire.messages import CONNECTION_LOST, IndirectManifest, Message, Offer, State
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
    """The base class of the links at both ends: the identity, the keys and the sequence numbers of a party.

    The parts of the party's runs (`protocol/link/run_part.py`) share all of this.
    """

    def __init__(
        self, me: Identity, keyring: Keyring, topics: Topics, transport: Transport, sealed: bool = True,
        clock: Clock | None = None,
    ) -> None:  # fmt: skip
        """Create a link of the party `me`.

        If `sealed`, a message to one recipient is encrypted for this recipient, and received messages that
        are not encrypted are refused.
        """
        self.me, self.keyring, self.topics, self.transport = me, keyring, topics, transport
        self.sealed, self.clock, self.epoch = sealed, clock or Clock(), 0
        # The run that the will of this party names.
        self.run = ""
        self._sequence = 0
        # The place where this coordinator runs. The coordinator's `State` messages contain this place, so that a
        # second coordinator can report where the first coordinator runs.
        self.who = ""
        self._windows: dict[str, ReplayWindow] = {}

    def next_frame(
        self, message: Message, run: str, metric_names: tuple[str, ...], recipient: str = EVERYBODY,
        attachment: Attachment = None, receive: bytes = b"",
    ) -> bytes:  # fmt: skip
        """Return the frame of a message of a run, and give the frame the next sequence number.

        `receive` is the recipient's key. A caller that has looked up the key passes it, because the key may
        have been removed from the keyring in the meantime.
        """
        self._sequence += 1  # sequence numbers begin with 1
        return self._frame(message, run, metric_names, self._sequence, recipient, attachment, receive)

    def _frame(
        self, message: Message, run: str, metric_names: tuple[str, ...], sequence: int, recipient: str = EVERYBODY,
        attachment: Attachment = None, receive: bytes = b"",
    ) -> bytes:  # fmt: skip
        place = codec.task_id_of(message)
        suite = SEALED if self.sealed and recipient != EVERYBODY else OPEN
        header = Header(
            MAJOR, MINOR, suite, codec.KINDS[type(message)], self.topics.federation, run, self.epoch,
            self.me.name, self.me.boot, sequence, recipient, place.round, place.phase, place.base,
        )  # fmt: skip
        if suite == SEALED and not receive:
            receive = self._receive_of(recipient)
        return seal(header, codec.encode(message, attachment, metric_names), self.me.keys.sign, receive)

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
        return Will(topic, self._frame(State(False, CONNECTION_LOST, self.who), self.run, (), 0))

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
        names = self._metric_names_of(header)
        message, attachment = codec.decode(header.kind, payload, header.sender, place, names)
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

    def _metric_names_of(self, header: Header) -> tuple[str, ...]:
        """Return the names of the metrics of the run that a message belongs to."""
        raise NotImplementedError

    def _check_header(self, header: Header, topic: str) -> None:
        raise NotImplementedError

    def _check_content(self, message: Message, attachment: Attachment) -> None:
        """Raise Rejected for a message that this end cannot use. The message is not marked as seen yet."""
        raise NotImplementedError

    def _on_unusable(self, header: Header, fault: Rejected) -> None:
        """Handle a message whose content has a fault.

        The signature of the header is valid, and the message is not marked as seen.
        """


def unverified_header(frame: bytes) -> Header | None:
    """Return the header of a frame before the frame is verified; None if the header cannot be read."""
    try:
        return read_header(frame)[0]
    except Rejected:
        return None


def kind_counted(header: Header | None) -> str:
    """Return the kind under which a message is counted, before its frame is verified."""
    return header.kind if header and header.kind in codec.DECODERS else "unreadable"
