"""Link a device to its coordinator.

The device sends its answers. It passes a task on when the broadcast that the task needs is complete.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from protofleet.protocol.link import indirect_manifest
from protofleet.protocol.link.base import WINDOW, FrameOutcome, Link, Received
from protofleet.protocol.link.clocks import Clock, ahead, days
from protofleet.protocol.link.fetch import ObjectFetch, ResponseTime, indices
from protofleet.protocol.link.meter import UP
from protofleet.protocol.link.replay_window import ReplayWindow
from protofleet.protocol.security.envelope import Header
from protofleet.protocol.security.keys import Identity, Keyring
from protofleet.protocol.storage.store import ObjectStore
from protofleet.protocol.transport.address import BrokerError
from protofleet.protocol.transport.base import Transport
from protofleet.protocol.wire import blocks, codec, forms
from protofleet.protocol.wire.codec import Attachment
from protofleet.protocol.wire.layout import Layout
from protofleet.protocol.wire.messages import (
    BlockRequest,
    IndirectManifest,
    Manifest,
    Message,
    Offer,
    Task,
    Update,
)
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.protocol.wire.reasons import Reason, Rejected
from protofleet.protocol.wire.topics import Topics


class DeviceLink(Link):
    def __init__(
        self, me: Identity, keyring: Keyring, topics: Topics, transport: Transport, store: ObjectStore,
        sealed: bool = True, clock: Clock | None = None,
    ) -> None:  # fmt: skip
        super().__init__(me, keyring, topics, transport, UP, sealed, clock)
        self.store = store
        # A block of one of these objects is a duplicate. It is not an unknown block.
        self._recently_completed: deque[bytes] = deque(maxlen=64)
        self._up = topics.up(me.name)
        self._down = topics.down(me.name)
        self._broadcast_now = topics.broadcast_now
        self.peer_forms: frozenset[str] = frozenset()  # forms of messages that the coordinator understands
        # Topic and frame of a block that came before the task that names it.
        self._early_block: tuple[str, bytes] | None = None
        self.offered: dict[bytes, Offer] = {}  # name of an answer's arrays -> its offer
        self._served: dict[bytes, Manifest] = {}
        self._layouts: dict[bytes, Layout] = {}  # layouts of the objects that are served
        self._sent: dict[bytes, bytearray] = {}
        self._inlined: tuple[int, str, bytes] | None = None  # the inline answer that was sent last
        # Round and phase of the last task, and the number of blocks of its answer that the coordinator asked
        # for with it.
        self._credit = (0, "", 0)
        self._fetch: ObjectFetch | None = None
        self._waiting: Received | None = None
        self._response_time = ResponseTime()
        # Time of the coordinator's last new message. Retained messages, and messages that the broker has
        # queued, do not count.
        self.last_new_message_at = 0.0
        # The coordinator never goes back to a round before the last one that this device has answered.
        self.least_round = 0

    @property
    def wake_at(self) -> float:
        return self._fetch.wake_at if self._fetch else float("inf")

    @property
    def fetching(self) -> bytes:
        """Return the name of the broadcast that is being fetched, or b""."""
        return self._fetch.object if self._fetch else b""

    @property
    def progress(self) -> tuple[int, int] | None:
        """Return the number of blocks here and of all blocks of the broadcast that is being fetched."""
        return (sum(self._fetch.partial.have), len(self._fetch.partial.have)) if self._fetch else None

    @property
    def has_early_block(self) -> bool:
        """Return whether a block came before the task that names it, and is not counted yet."""
        return self._early_block is not None

    def send(self, message: Message) -> None:
        self.publish(self._up, message, COORDINATOR)

    def send_update(self, update: Update, name: bytes) -> None:
        """Send an answer whose arrays are an object of the store.

        A small object is sent in the message, and a large one is offered.
        """
        size = self.store.size(name)
        if size <= self.inline:
            body = self.store.open(name)
            attachment: Attachment = bytes(self.store.read(name, 0, size))
            answer = (update.round, update.phase, name)
            fresh, self._inlined = answer != self._inlined, answer
            self.publish(self._up, update, COORDINATOR, attachment, body.sizes(self.kinds), fresh)
            return
        if not self._can_still_offer(name):
            self.forget(name)
            offer = self._offer(self.with_new_key(self.store.manifest(name, self.block)))
            self.offered[name] = offer
            if isinstance(offer, Manifest) and self._was_asked_for(update, len(offer.hashes)):
                self.publish(self._up, replace(update, follows=True), COORDINATOR, offer)
                self._send_blocks(BlockRequest(name, ((0, 1),)))
                return
        self.publish(self._up, update, COORDINATOR, self.offered[name])

    def _was_asked_for(self, update: Update, blocks: int) -> bool:
        """Return whether the coordinator asked for the answer's only block together with its task.

        Return True only once. If the device sends an answer again, it waits until the coordinator asks for
        the block.
        """
        round, phase, credit = self._credit
        asked = (update.round, update.phase) == (round, phase) and blocks == 1 <= credit
        if asked:
            self._credit = (0, "", 0)
        return asked

    def _can_still_offer(self, name: bytes) -> bool:
        """Return whether the object can be offered as before.

        This is not so if the broker has come back with a smaller limit.
        """
        if (offer := self.offered.get(name)) is None:
            return False
        of_manifest = (offer.manifest,) if isinstance(offer, IndirectManifest) else ()
        return self.still_fits(self._served[name], *of_manifest)

    def _offer(self, manifest: Manifest) -> Offer:
        self._serve(manifest)
        if self.fits(manifest):
            return manifest
        if forms.MANIFEST not in self.peer_forms:
            raise BrokerError(
                f"the manifest of an answer of {manifest.size} bytes fits no packet of this broker, and this "
                "coordinator takes none as an object; raise the broker's packet limit to 131072"
            )
        of_manifest = self.with_new_key(indirect_manifest.store(manifest, self.store, self.block))
        self._serve(of_manifest)
        return IndirectManifest(manifest.object, manifest.size, manifest.key, of_manifest)

    @property
    def served(self) -> set[bytes]:
        """Return the objects that the coordinator may ask for."""
        return set(self._served)

    def _serve(self, manifest: Manifest) -> None:
        self._served[manifest.object], self._sent[manifest.object] = manifest, bytearray(len(manifest.hashes))
        self._layouts[manifest.object] = self.layout_of(self.store, manifest.object)

    def forget(self, name: bytes) -> None:
        """Stop serving the blocks of an answer, because the device has the receipt for it."""
        names = {name}
        if isinstance(offer := self.offered.pop(name, None), IndirectManifest):
            names.add(offer.manifest.object)
            self.store.drop(offer.manifest.object)
        for known in names:
            self._served.pop(known, None)
            self._sent.pop(known, None)
            self._layouts.pop(known, None)

    def forget_all(self) -> None:
        """Stop fetching, offering and serving all objects, because another run or plan has begun."""
        self.stop_fetching()
        for name in list(self.offered):
            self.forget(name)
        self._inlined = None

    def arrived(self, topic: str, frame: bytes, now: float) -> list[Received]:
        """Return the messages that are complete after this frame.

        Raise Rejected if the frame has a fault.
        """
        if blocks.is_block(frame):
            return self._block(topic, frame, now)
        opened: list[tuple[Header, Message]] = []

        def take() -> FrameOutcome:
            before = self.last_heard(COORDINATOR)
            found = self.open(topic, frame)
            if self.last_heard(COORDINATOR) != before:
                self.last_new_message_at = now
            if found:
                opened.append(found[:2])
            return FrameOutcome(new=found is not None)

        self._count_frame(topic, frame, self.kind_of(frame), take)
        return [done for header, message in opened for done in self._message(header, message, now)]

    def wake(self, now: float) -> None:
        if self._fetch:
            self._fetch.wake(now, WINDOW)

    @property
    def waiting_bytes(self) -> int:
        return self._fetch.count.waiting if self._fetch else 0

    def stop_fetching(self) -> None:
        if fetch := self._fetch:
            self._ignore_blocks_of(fetch.manifest)
            self.end_fetch(fetch, forget=True)  # another broadcast has taken the place of this one
        self._fetch = self._waiting = None

    def _ignore_blocks_of(self, manifest: Manifest) -> None:
        """Count the blocks of an object that still arrive as duplicates, not as unknown blocks."""
        self._recently_completed.append(manifest.wire_name[: codec.SHORT_HASH])
        if not self._follows(manifest):
            self.transport.unsubscribe(self._topic_of(manifest))

    @staticmethod
    def _follows(manifest: Manifest) -> bool:
        """Return whether the object comes without a request.

        The manifest of such an object has no parts, so only the body says what it contains.
        """
        return not manifest.parts

    def _continues(self, fetch: ObjectFetch, manifest: Manifest) -> bool:
        """Return whether the manifest is of the object that is being fetched, and take over its key.

        A coordinator that was away serves the same object under another key.
        """
        before = fetch.manifest
        if not fetch.rekeyed(manifest):
            return False
        if before != manifest:
            self._ignore_blocks_of(before)
            if not self._follows(manifest):
                self.transport.subscribe(self._topic_of(manifest))
        return True

    def _topic_of(self, manifest: Manifest) -> str:
        return self.topics.broadcast(manifest.wire_name.hex())

    def _message(self, header: Header, message: Message, now: float) -> list[Received]:
        received = Received(header.sender, message, header.run, header.epoch)
        if isinstance(message, Task):
            self._credit = (message.round, message.phase, message.credit)
        match message:
            case BlockRequest():
                self._send_blocks(message)
                return []
            case Task(broadcast=Manifest() | IndirectManifest() as offer):
                return self._fetch_if_missing(received, offer, now)
        return [received]

    def _fetch_if_missing(self, received: Received, offer: Offer, now: float) -> list[Received]:
        """Pass a task on if its broadcast is here; otherwise fetch the broadcast.

        If the manifest is an object, it is fetched first.
        """
        if self.store.has(offer.object):
            return [replace(received, object=offer.object)]
        if isinstance(offer, IndirectManifest):
            is_here = self.store.has(offer.manifest.object)
            offer = indirect_manifest.load(offer, self.store) if is_here else offer.manifest
        return self._start_fetch(received, offer, now)

    def _start_fetch(self, received: Received, manifest: Manifest, now: float) -> list[Received]:
        if self._fetch and self._continues(self._fetch, manifest):
            self._waiting = received
            return []
        self.stop_fetching()
        partial = self.store.begin(manifest)
        self._fetch, self._waiting = (
            ObjectFetch(partial, self.send, self._response_time, kinds=self.kinds),
            received,
        )
        follows = self._follows(manifest)
        if not follows:
            self.transport.subscribe(self._topic_of(manifest))
        # An earlier process had all blocks, and died before it named the object.
        if self._fetch.partial.complete:
            return self._completed(self._fetch, now)
        if not follows:
            self._fetch.fill(WINDOW, now)
            return []
        self._fetch.await_unasked(now)
        early, self._early_block = self._early_block, None
        return self._block(*early, now) if early else []

    def _block(self, topic: str, frame: bytes, now: float) -> list[Received]:
        if topic == self._broadcast_now and self._is_early(frame):
            before, self._early_block = self._early_block, (topic, frame)
            if before is None:
                return []
            topic, frame = before  # no task will name this block, or its task comes after a later one

        def take() -> FrameOutcome:
            prefix, index, data = blocks.unpack(frame)
            fetch = self._fetch
            if fetch is None or not fetch.is_named(prefix):
                if prefix in self._recently_completed:
                    return FrameOutcome(new=False)
                if topic == self._broadcast_now:  # of a round that other devices are asked for
                    return FrameOutcome(new=False, for_us=False)
                raise Rejected(
                    Reason.UNKNOWN_OBJECT, f"a block of {prefix.hex()}, which is not being fetched"
                )
            if topic not in (self._down, self._broadcast_now, self._topic_of(fetch.manifest)):
                raise Rejected(Reason.WRONG_TOPIC, f"a block on {topic}")
            size, spans, fresh = fetch.take(index, data, now)
            return FrameOutcome(held=size, spans=spans, new=fresh)

        fresh, fetch = self._count_frame(topic, frame, "block", take), self._fetch
        if not fresh or fetch is None:
            return []
        if not fetch.partial.complete:
            fetch.fill(WINDOW, now)
            return []
        return self._completed(fetch, now)

    def _is_early(self, frame: bytes) -> bool:
        """Return whether a block has overtaken its task, which travels on another topic."""
        try:
            prefix, _, _ = blocks.unpack(frame)
        except Rejected:
            return False  # the caller reports the fault when it counts the block
        fetched = self._fetch is not None and self._fetch.is_named(prefix)
        return not fetched and prefix not in self._recently_completed

    def _completed(self, fetch: ObjectFetch, now: float) -> list[Received]:
        """Name the object, as all of its blocks are here, and go on with the task that waits for it."""
        waiting, self._fetch, self._waiting = self._waiting, None, None
        self._ignore_blocks_of(fetch.manifest)
        fetch.partial.finish()
        if waiting is None:
            return []
        assert isinstance(waiting.message, Task) and waiting.message.broadcast
        return self._fetch_if_missing(waiting, waiting.message.broadcast, now)

    def _send_blocks(self, request: BlockRequest) -> None:
        for name, ranges in ((request.object, request.ranges), *request.more):
            manifest = self._served.get(name)
            if manifest is None or not self.store.has(name):
                # The coordinator that asks has forgotten the receipt that it sent. The next offer tells it
                # again.
                continue
            sent = self._sent[name]
            wanted, layout = indices(ranges, len(manifest.hashes)), self._layouts[name]
            self.block_qos.asked(len(wanted), request.again)
            for index in wanted:
                self.send_block(self._up, self.store, manifest, index, not sent[index], layout)
                sent[index] = 1

    def _check_content(self, message: Message, attachment: Attachment) -> None:
        if isinstance(message, Task) and message.round < self.least_round:
            raise Rejected(Reason.STALE_ROUND, f"round {message.round}, {self.least_round} has been answered")
        if isinstance(message, Task) and message.broadcast:
            self._check_offer(message.broadcast)

    def _window(self, header: Header, holder: str) -> ReplayWindow:
        before = self._windows.get(header.sender)
        if self._epoch_was_accepted_without_clock(header):
            self._windows.pop(COORDINATOR, None)
        window = super()._window(header, holder)
        if header.sender == COORDINATOR and before is not None and window is not before:
            self.epoch = 0  # new keys start a new count of epochs
        return window

    def _epoch_was_accepted_without_clock(self, header: Header) -> bool:
        """Return whether the stored epoch was accepted while this device's clock was not believed.

        The epoch is now far ahead of the clock. The epoch is kept until another coordinator sends a message:
        the coordinator of that epoch may still run, and only its clock may be wrong.
        """
        held = self.epoch if self.clock.ahead(self.epoch) else 0
        return header.sender == COORDINATOR and header.epoch < held and not self.clock.ahead(header.epoch)

    def _clock_advice(self) -> str:
        """Return advice about an epoch that is ahead of a clock that is not believed.

        The clock is not believed because it has shown a later time before, so it cannot judge the epoch.
        """
        if self.clock.is_believable or (seconds := ahead(self.epoch, self.clock.now())) <= 0:
            return ""
        return (
            f", {days(seconds)} ahead of this device's clock, which has shown later times itself and judges nothing: "
            f"set it; if it was ahead then and is right now, `protofleet enrol renew {self.me.name}`, install, "
            "start it again"
        )

    @property
    def asked(self) -> tuple[int, str] | None:
        """Return the round and the phase of the task whose broadcast is being fetched."""
        waiting = self._waiting.message if self._waiting else None
        return (waiting.round, waiting.phase) if isinstance(waiting, Task) else None

    def _check_header(self, header: Header, topic: str) -> None:
        if header.sender != COORDINATOR:
            raise Rejected(Reason.WRONG_TOPIC, f"{header.sender} speaks where only the coordinator may")
        if header.kind == "state":
            expected = self.topics.coord_state
        else:
            expected = self._down
            if header.recipient != self.me.name:
                raise Rejected(Reason.WRONG_RECIPIENT, f"for {header.recipient[:64]}")
        if topic != expected:
            raise Rejected(Reason.WRONG_TOPIC, f"a {header.kind} on {topic}")
        if header.epoch > self.epoch and (seconds := self.clock.ahead(header.epoch)):
            raise Rejected(
                Reason.EPOCH_AHEAD,
                f"epoch {header.epoch} of the coordinator lies {days(seconds)} ahead of this device's clock: set the "
                "clock that is wrong, and start the coordinator again if it was its own",
            )
        if header.epoch < self.epoch:
            message = f"coordinator epoch {header.epoch}, {self.epoch} has been heard"
            raise Rejected(Reason.STALE_EPOCH, message + self._clock_advice())
        self.run, self.epoch = header.run, header.epoch
