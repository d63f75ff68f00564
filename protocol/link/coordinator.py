"""Link the coordinator to its devices.

The link verifies each frame. Its part `answers` receives the updates, and its part `tasks` sends the tasks
with their broadcast.
"""

from __future__ import annotations

from collections.abc import Callable

from protofleet.protocol.link.admission import NOT_FINAL, UnusableAnswer
from protofleet.protocol.link.answer_fetcher import AnswerFetcher, Stores
from protofleet.protocol.link.base import FrameOutcome, Received
from protofleet.protocol.link.block_budget import Credit
from protofleet.protocol.link.clocks import Clock
from protofleet.protocol.link.inline_answer import InlineAnswer, InlineAnswers
from protofleet.protocol.link.own_topic import OwnTopic
from protofleet.protocol.link.task_sender import TaskSender
from protofleet.protocol.link.to_devices import LinkToDevices
from protofleet.protocol.security.envelope import Header
from protofleet.protocol.security.keys import Identity, Keyring
from protofleet.protocol.transport.base import Transport, packet_bytes
from protofleet.protocol.wire import blocks
from protofleet.protocol.wire.messages import BlockRequest, Message, Offer, Update
from protofleet.protocol.wire.reasons import Reason, Rejected
from protofleet.protocol.wire.topics import Topics

Opened = tuple[Header, Message, InlineAnswer | Offer | None]  # header, message and attachment of a frame


class CoordinatorLink(LinkToDevices):
    """The link of a coordinator. Its parts `answers` and `tasks` share the budget of blocks in flight."""

    def __init__(
        self, me: Identity, keyring: Keyring, topics: Topics, transport: Transport, stores: Stores, run: str,
        sealed: bool = True, clock: Clock | None = None, who: str = "",
    ) -> None:  # fmt: skip
        """Create the link of a coordinator.

        `who` says where this coordinator runs. A second coordinator of the same federation can report this
        place.
        """
        super().__init__(me, keyring, topics, transport, run, sealed, clock, who)
        credit = Credit()
        self.tasks, self.answers = TaskSender(self, credit), AnswerFetcher(self, stores, credit)
        self._inline_answers = InlineAnswers()
        self._own_topic = OwnTopic(me, topics.federation, who, self.clock)
        # Called with the sender of each new message.
        self.on_message: Callable[[str], None] = lambda device: None

    @property
    def wake_at(self) -> float:
        return min(self.answers.wake_at, self.tasks.wake_at)

    def wake(self, now: float) -> None:
        self.answers.wake(now)
        self.tasks.wake(now)

    @property
    def waiting_bytes(self) -> int:
        return self.answers.waiting_bytes

    @property
    def hears_own_messages(self) -> bool:
        """Return whether this coordinator has received one of its own messages from the broker."""
        return self._own_topic.brings_own_messages

    def arrived(self, topic: str, frame: bytes, now: float) -> list[Received]:
        """Handle a frame, and return the messages that are complete after this frame.

        Raise Rejected if the frame has a fault.
        """
        if blocks.is_block(frame):
            return self._block(topic, frame, now)
        if topic == self.topics.coord_state:
            return self._own_state(frame, now)
        opened = self._open_frame(topic, frame, now)
        if isinstance(opened, UnusableAnswer):
            self._report_packet(topic, frame)
            self.on_message(opened.update.device)
            self.answers.admission_controller.unusable(opened.update, opened)
            return []
        if opened is None:
            return []
        header, message, content = opened
        if header.sequence:  # The broker publishes MQTT wills.
            self._report_packet(topic, frame)
        self._note_new_connection(header, message)
        self._report_message(header)
        try:
            return self._message(header, message, content, now)
        except Rejected as fault:  # the frame is good, but the offered object cannot be fetched now
            self.meter.rejected[fault.reason] += 1
            raise

    def _open_frame(self, topic: str, frame: bytes, now: float) -> Opened | UnusableAnswer | None:
        """Verify, decode and count a frame. Return None for a duplicate, and the fault for an unusable update."""
        opened: Opened | UnusableAnswer | None = None

        def take() -> FrameOutcome:
            nonlocal opened
            self.rate_limiter.charge_frame(self.device_of_topic(topic), now)
            try:
                opened = self._open_with_content(topic, frame)
            except UnusableAnswer as answer:  # the admission controller counts this fault
                opened = answer
                return FrameOutcome(fault=answer.reason)
            if opened is None:
                return FrameOutcome(new=False)
            content = opened[2]
            if isinstance(content, InlineAnswer):
                return FrameOutcome(content.arrays.sizes(self.kinds), first=content.first)
            return FrameOutcome()

        try:
            self._count_frame(topic, frame, self.kind_of(frame), take)
        except Rejected as fault:
            # `open` has checked that the device of this topic signed the frame.
            if fault.reason is Reason.STALE_BOOT:
                self._refuse_older_process(self.device_of_topic(topic))
            if fault.reason is Reason.BOOT_AHEAD:
                self._refuse_boot(frame, fault.detail)
            raise
        return opened

    def _open_with_content(self, topic: str, frame: bytes) -> Opened | None:
        found = self.open(topic, frame)
        if found is None:
            return None
        header, message, attachment = found
        if isinstance(attachment, bytes):
            return header, message, self._inline(header, message, attachment)
        return header, message, attachment

    def _report_message(self, header: Header) -> None:
        """Report which device has sent a message to this coordinator; ignore MQTT wills.

        An MQTT will does not show that the device is connected, because the broker publishes the will. A message to
        an earlier coordinator is not reported either.
        """
        if header.sequence and header.epoch == self.epoch:
            self.on_message(header.sender)

    def _report_packet(self, topic: str, frame: bytes) -> None:
        if self.on_packet is not None:
            self.on_packet(topic, packet_bytes(topic, len(frame)))

    def _own_state(self, frame: bytes, now: float) -> list[Received]:
        """Ignore the coordinator's own states, and return the states of a later coordinator.

        The bytes of these messages are not counted, because the meter counts only the bytes between devices
        and their coordinator.
        """
        result = "duplicate"
        try:
            self.rate_limiter.charge_own_name(now)
            later = self._own_topic.later_state(frame)
            if later is not None:
                result = "accepted"
        except Rejected as fault:
            self.meter.rejected[fault.reason] += 1
            result = fault.reason.value
            raise
        finally:
            self.meter.count_message(self.peer_direction, "state", result)
        return [later] if later is not None else []

    def _message(
        self, header: Header, message: Message, attachment: InlineAnswer | Offer | None, now: float
    ) -> list[Received]:
        received = Received(
            header.sender, message, header.run, header.epoch, sequence=header.sequence, boot=header.boot
        )
        match message:
            case BlockRequest():
                if self.tasks.requested(header.sender, message, now):
                    self.rate_limiter.frame_was_useful(header.sender)
                return []
            case Update():
                assert attachment is not None
                follows = self.answers.use_credit(message, attachment)
                if header.run != self.run:
                    return []  # the update belongs to another run; a welcome informs the device of this run
                return self.answers.offered(received, message, attachment, now, follows)
        return [received]

    def _on_unusable(self, header: Header, fault: Rejected) -> None:
        if header.kind != "update" or fault.reason in NOT_FINAL:
            return
        update = Update(header.sender, header.round, header.phase, 0, header.base)
        window = self._windows[header.sender]
        if self._is_expected(header, update) and window.is_new(header.boot, header.sequence):
            raise UnusableAnswer(update, fault)

    def _is_expected(self, header: Header, update: Update) -> bool:
        return header.run == self.run and self.answers.admission_controller.is_expected(update)

    def _inline(self, header: Header, message: Message, data: bytes) -> InlineAnswer:
        assert isinstance(message, Update), "only an update has bytes as its attachment"
        try:
            return self._inline_answers.read(message, data)
        except Rejected as fault:
            if self._is_expected(header, message):
                raise UnusableAnswer(message, fault) from None
            raise

    def _block(self, topic: str, frame: bytes, now: float) -> list[Received]:
        place = self.topics.parse(topic)
        device = place.device if place and place.kind == "up" else ""
        held = self.answers.fetches.get(device)

        def take() -> FrameOutcome:
            self.rate_limiter.charge_block(device, now)
            prefix, index, data = blocks.unpack(frame)
            if not device:
                raise Rejected(Reason.WRONG_TOPIC, f"no device may send blocks on {topic}")
            outcome = self.answers.take_block(device, prefix, index, data, now)
            if outcome.new:
                self.rate_limiter.block_was_useful(device)
            return outcome

        if not self._count_frame(topic, frame, "block", take) or held is None:
            return []
        self._report_packet(topic, frame)
        self.on_message(device)
        return self.answers.block_taken(device, held[0], now)
