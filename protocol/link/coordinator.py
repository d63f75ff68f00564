"""Link the coordinator to its devices.

The link verifies each frame, and passes its message to the part of the run that the message belongs to.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from protofleet.protocol.link.admission import NOT_FINAL, UnusableAnswer
from protofleet.protocol.link.base import FrameOutcome, Received, kind_counted, unverified_header
from protofleet.protocol.link.clocks import Clock
from protofleet.protocol.link.coordinator_run import CoordinatorRunLink
from protofleet.protocol.link.inline_answer import InlineAnswer
from protofleet.protocol.link.own_topic import OwnTopic
from protofleet.protocol.link.to_devices import LinkToDevices, refusal_of
from protofleet.protocol.security.envelope import Header, read_header
from protofleet.protocol.security.keys import Identity, Keyring
from protofleet.protocol.storage.store import ObjectStore
from protofleet.protocol.transport.base import Transport
from protofleet.protocol.wire import blocks
from protofleet.protocol.wire.messages import BlockRequest, Hello, Message, Offer, Refusal, State, Update
from protofleet.protocol.wire.reasons import Reason, Rejected
from protofleet.protocol.wire.topics import Topics

Opened = tuple[Header, Message, InlineAnswer | Offer | None]  # header, message and attachment of a frame


class CoordinatorLink(LinkToDevices):
    """The link of a coordinator, with one part for each run that is open (`runs`, by the run's name).

    `run` is the name of the legacy run: the run of all devices whose software follows only one run. These devices
    forget the run's plan as soon as they receive a message that names another run. So each message to all devices
    names the legacy run, and so does the will.
    """

    def __init__(
        self, me: Identity, keyring: Keyring, topics: Topics, transport: Transport, sealed: bool = True,
        clock: Clock | None = None, who: str = "",
    ) -> None:  # fmt: skip
        """Create the link of a coordinator.

        `who` says where this coordinator runs. A second coordinator of the same federation can report this
        place.
        """
        super().__init__(me, keyring, topics, transport, sealed, clock, who)
        self.runs: dict[str, CoordinatorRunLink] = {}
        # Counts what belongs to no open run.
        self.unassigned = CoordinatorRunLink(self, "", no_stores)
        # Returns the name of the run that a device takes part in, for a message that names no open run.
        self.run_of: Callable[[str], str] = lambda device: self.run
        self._own_topic = OwnTopic(me, topics.federation, who, self.clock)

    def add(self, part: CoordinatorRunLink, is_legacy: bool = True) -> None:
        """Open a run. It becomes the legacy run if no legacy run is open, unless `is_legacy` is false."""
        if self.run not in self.runs and is_legacy:
            self.make_legacy(part.run)
        self.runs[part.run] = part
        self.block_budget.join(part.answers)

    def make_legacy(self, run: str) -> None:
        """Name this run in all messages to all devices; it may be a run that is not open now."""
        self.run = self.unassigned.run = run

    def remove(self, part: CoordinatorRunLink, now: float) -> None:
        """Close a run. The parts of updates that have arrived stay on the disk.

        If it is the legacy run, messages to all devices still name it until another run becomes the legacy run.
        """
        for device in list(part.answers.fetches):
            part.answers.abandon(device)
        self.block_budget.leave(part.answers)
        del self.runs[part.run]
        self.block_budget.share(now)

    def part(self, run: str, device: str = "") -> CoordinatorRunLink:
        """Return the part of this run; if it is not open, return the part of the device's run."""
        return self.runs.get(run) or self.runs.get(self.run_of(device)) or self.unassigned

    @property
    def legacy(self) -> CoordinatorRunLink:
        """Return the part of the legacy run. It also counts all frames that cannot be read."""
        return self.runs.get(self.run, self.unassigned)

    def announce(self, state: State, retain: bool) -> None:
        """Publish the state of this coordinator to all devices."""
        self.legacy.publish(self.topics.coord_state, state, retain=retain)

    @property
    def wake_at(self) -> float:
        return min((part.wake_at for part in self.runs.values()), default=float("inf"))

    def wake(self, now: float) -> None:
        for part in self.runs.values():
            with part.scope():
                part.wake(now)

    def end_turn(self, now: float) -> None:
        """Send the blocks that follow the tasks of this turn, and use the room that a run has left in the budget."""
        for part in self.runs.values():
            with part.scope():
                part.tasks.flush(now)
        if len(self.runs) > 1:
            self.block_budget.share(now)

    @property
    def hears_own_messages(self) -> bool:
        """Return whether this coordinator has received one of its own messages from the broker."""
        return self._own_topic.brings_own_messages

    def proven_epoch(self, frame: bytes) -> int:
        """Return the epoch that a state in a hello proves, if it is above the own one; otherwise return 0.

        A state that this coordinator's key did not sign for this federation is counted as rejected.
        """
        try:
            return self._own_topic.proven_epoch(frame)
        except Rejected as fault:
            self.legacy.meter.rejected[fault.reason] += 1
            raise

    def arrived(self, topic: str, frame: bytes, now: float) -> list[Received]:
        """Handle a frame, and return the messages that are complete after this frame.

        Raise Rejected if the frame has a fault.
        """
        if blocks.is_block(frame):
            return self._block(topic, frame, now)
        if topic == self.topics.coord_state:
            return self._under_own_name(frame, "state", self._own_topic.state_of_other, now)
        if topic == self.topics.coord_probe:
            kind = kind_counted(unverified_header(frame))
            return self._under_own_name(frame, kind, self._own_topic.from_standby, now)
        unverified = unverified_header(frame)
        part = self.part(unverified.run if unverified else "", self.device_of_topic(topic))
        with part.scope():
            return self._arrived_for(part, unverified, topic, frame, now)
        return []

    def _arrived_for(
        self, part: CoordinatorRunLink, unverified: Header | None, topic: str, frame: bytes, now: float
    ) -> list[Received]:
        opened = self._open_frame(part, kind_counted(unverified), topic, frame, now)
        if isinstance(opened, UnusableAnswer):
            part.report_packet(topic, frame)
            part.unusable(opened)
            return []
        if opened is None:
            return []
        header, message, content = opened
        if header.sequence:  # The broker publishes MQTT wills.
            part.report_packet(topic, frame)
        self._note_new_connection(header, message)
        self._report_message(part, header)
        try:
            return self._message(part, header, message, content, now)
        except Rejected as fault:  # the frame is good, but the offered object cannot be fetched now
            part.meter.rejected[fault.reason] += 1
            raise

    def _open_frame(
        self, part: CoordinatorRunLink, kind: str, topic: str, frame: bytes, now: float
    ) -> Opened | UnusableAnswer | None:
        """Verify, decode and count a frame. Return None for a duplicate, and the fault for an unusable update."""
        opened: Opened | UnusableAnswer | None = None

        def take() -> FrameOutcome:
            nonlocal opened
            self.rate_limiter.charge_frame(self.device_of_topic(topic), now)
            try:
                opened = self._open_with_content(part, topic, frame)
            except UnusableAnswer as answer:  # the admission controller counts this fault
                opened = answer
                return FrameOutcome(fault=answer.reason)
            if opened is None:
                return FrameOutcome(new=False)
            content = opened[2]
            if isinstance(content, InlineAnswer):
                return FrameOutcome(content.arrays.sizes(part.kinds), first=content.first)
            return FrameOutcome()

        try:
            part.count_frame(topic, frame, kind, take)
        except Rejected as fault:
            # `open` has checked that the device of this topic signed the frame.
            if fault.reason is Reason.STALE_BOOT:
                self._refuse_older_process(part, self.device_of_topic(topic))
            if fault.reason is Reason.BOOT_AHEAD:
                self._refuse_boot(part, frame, fault.detail)
            raise
        return opened

    def _open_with_content(self, part: CoordinatorRunLink, topic: str, frame: bytes) -> Opened | None:
        found = self.open(topic, frame)
        if found is None:
            return None
        header, message, attachment = found
        if isinstance(attachment, bytes):
            assert isinstance(message, Update), "only an update has bytes as its attachment"
            return header, message, part.read_inline(header.run, message, attachment)
        return header, message, attachment

    def _report_message(self, part: CoordinatorRunLink, header: Header) -> None:
        """Report which device has sent a message to this coordinator; ignore MQTT wills.

        An MQTT will does not show that the device is connected, because the broker publishes the will. A message to
        an earlier coordinator is not reported either.
        """
        if header.sequence and header.epoch == self.epoch:
            part.on_message(header.sender)

    def _under_own_name(
        self, frame: bytes, kind: str, read: Callable[[bytes], Received | None], now: float
    ) -> list[Received]:
        """Read a frame that this coordinator or another process with its key has sent.

        The bytes of these messages are not counted, because the meter counts only the bytes between devices
        and their coordinator.
        """
        meter, result = self.legacy.meter, "duplicate"
        try:
            self.rate_limiter.charge_own_name(now)
            received = read(frame)
            if received is not None:
                result = "accepted"
        except Rejected as fault:
            meter.rejected[fault.reason] += 1
            result = fault.reason.value
            raise
        finally:
            meter.count_message(self.unassigned.peer_direction, kind, result)
        return [received] if received is not None else []

    def _message(
        self, part: CoordinatorRunLink, header: Header, message: Message, attachment: InlineAnswer | Offer | None,
        now: float,
    ) -> list[Received]:  # fmt: skip
        received = Received(
            header.sender, message, header.run, header.epoch, sequence=header.sequence, boot=header.boot
        )
        match message:
            case BlockRequest():
                part.block_requested(header.sender, message, now)
                return []
            case Update():
                assert attachment is not None
                return part.update_received(received, message, attachment, now)
        return [received]

    def _metric_names_of(self, header: Header) -> tuple[str, ...]:
        return self.part(header.run, header.sender).metric_names

    def _on_unusable(self, header: Header, fault: Rejected) -> None:
        if header.kind != "update" or fault.reason in NOT_FINAL:
            return
        update = Update(header.sender, header.round, header.phase, 0, header.base)
        part, window = self.runs.get(header.run), self._windows[header.sender]
        if part and part.is_expected(update) and window.is_new(header.boot, header.sequence):
            raise UnusableAnswer(update, fault)

    def _refuse_older_process(self, part: CoordinatorRunLink, device: str) -> None:
        """Send a refusal to the older of two processes with the same name.

        Both processes receive the refusal, and the newer process ignores it.
        """
        boot, _ = self.last_heard(device)
        message = (
            f"a later process uses the name {device} (boot {boot}), or the clock of this process has gone back; "
            "stop all processes with this name, and start one of them again"
        )
        part.send(device, Refusal(message, boot))

    def _refuse_boot(self, part: CoordinatorRunLink, frame: bytes, message: str) -> None:
        """Send a refusal to a device whose boot is not valid, if the frame is a hello."""
        header, start = read_header(frame)
        with contextlib.suppress(Rejected):
            hello, _ = self._contents(frame, header, start)
            if isinstance(hello, Hello):
                part.send(header.sender, refusal_of(message, hello, header.boot, header.sequence))

    def _block(self, topic: str, frame: bytes, now: float) -> list[Received]:
        place = self.topics.parse(topic)
        device = place.device if place and place.kind == "up" else ""
        part = self._part_of_block(device, frame)
        with part.scope():
            return self._block_for(part, device, topic, frame, now)
        return []

    def _block_for(
        self, part: CoordinatorRunLink, device: str, topic: str, frame: bytes, now: float
    ) -> list[Received]:
        held = part.answers.fetches.get(device)

        def take() -> FrameOutcome:
            self.rate_limiter.charge_block(device, now)
            prefix, index, data = blocks.unpack(frame)
            if not device:
                raise Rejected(Reason.WRONG_TOPIC, f"no device may send blocks on {topic}")
            outcome = part.answers.take_block(device, prefix, index, data, now)
            if outcome.new:
                self.rate_limiter.block_was_useful(device)
            return outcome

        if not part.count_frame(topic, frame, "block", take) or held is None:
            return []
        part.report_packet(topic, frame)
        part.on_message(device)
        return part.answers.block_taken(device, held[0], now)

    def _part_of_block(self, device: str, frame: bytes) -> CoordinatorRunLink:
        """Return the run that fetches the object of this block, or has fetched it; else the run of the device."""
        with contextlib.suppress(Rejected):
            prefix, _, _ = blocks.unpack(frame)
            for part in self.runs.values():
                if part.answers.knows_object(device, prefix):
                    return part
        return self.part("", device)


def no_stores(device: str) -> ObjectStore:
    """Raise an error, because without a run no update is fetched."""
    raise AssertionError(f"no run stores an update of {device}")
