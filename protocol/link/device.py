"""The device's end: answers go up, tasks come down when the broadcast they stand on is here in full."""

from __future__ import annotations

from dataclasses import replace

from protofleet.protocol.link import indirect_manifest
from protofleet.protocol.link.base import WINDOW, FrameOutcome, Link, Received
from protofleet.protocol.link.clocks import Clock, ahead, days
from protofleet.protocol.link.fetch import Fetch, ResponseTime, indices
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
        self._up = topics.up(me.name)
        self._down = topics.down(me.name)
        self._broadcast_now = topics.broadcast_now
        self.peer_forms: frozenset[str] = frozenset()  # forms of messages that the coordinator understands
        self._early_block: tuple[str, bytes] | None = None  # a block that came before the task that names it
        self.offered: dict[bytes, Offer] = {}  # by what an update says
        self._served: dict[bytes, Manifest] = {}
        self._layouts: dict[bytes, Layout] = {}  # of what is served
        self._sent: dict[bytes, bytearray] = {}
        self._inlined: tuple[int, str, bytes] | None = None  # the inline answer that was sent last
        # Round and phase of the last task, and blocks of its answer that were asked for with it.
        self._credit = (0, "", 0)
        self._fetch: Fetch | None = None
        self._waiting: Received | None = None
        self._response_time = ResponseTime()
        # Of the coordinator: new, and not a retained message or one that the broker has queued.
        self.last_new_message_at = 0.0
        self.least_round = 0  # the coordinator never goes back behind a round that we have answered

    @property
    def wake_at(self) -> float:
        return self._fetch.wake_at if self._fetch else float("inf")

    @property
    def fetching(self) -> bytes:
        """Name of the broadcast that is being fetched, or nothing."""
        return self._fetch.object if self._fetch else b""

    @property
    def progress(self) -> tuple[int, int] | None:
        """Blocks here and blocks in all of the broadcast that is coming."""
        return (sum(self._fetch.partial.have), len(self._fetch.partial.have)) if self._fetch else None

    @property
    def has_early_block(self) -> bool:
        """One that came before the task that names it, and is not counted yet."""
        return self._early_block is not None

    def send(self, message: Message) -> None:
        self.publish(self._up, message, COORDINATOR)

    def send_update(self, update: Update, name: bytes) -> None:
        """Say an answer whose arrays are an object of the store: whole if small, else as an offer."""
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
        """Once, with its task: whoever says an answer again waits until its block is asked for."""
        round, phase, credit = self._credit
        asked = (update.round, update.phase) == (round, phase) and blocks == 1 <= credit
        if asked:
            self._credit = (0, "", 0)
        return asked

    def _can_still_offer(self, name: bytes) -> bool:
        """As before, that is: a broker may have come back with a smaller limit."""
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
        """Objects that the coordinator may ask for."""
        return set(self._served)

    def _serve(self, manifest: Manifest) -> None:
        self._served[manifest.object], self._sent[manifest.object] = manifest, bytearray(len(manifest.hashes))
        self._layouts[manifest.object] = self.layout_of(self.store, manifest.object)

    def forget(self, name: bytes) -> None:
        """An answer has its receipt: serve its blocks no more."""
        names = {name}
        if isinstance(offer := self.offered.pop(name, None), IndirectManifest):
            names.add(offer.manifest.object)
            self.store.drop(offer.manifest.object)
        for known in names:
            self._served.pop(known, None)
            self._sent.pop(known, None)
            self._layouts.pop(known, None)

    def forget_all(self) -> None:
        """Another run, or plan: nothing of the one before is fetched, offered or served any more."""
        self.stop_fetching()
        for name in list(self.offered):
            self.forget(name)
        self._inlined = None

    def arrived(self, topic: str, frame: bytes, now: float) -> list[Received]:
        """What is complete after this frame. Raises Rejected where the frame was at fault."""
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
            self._end_fetch(fetch, forget=True)  # another broadcast has taken its place
        self._fetch = self._waiting = None

    def _ignore_blocks_of(self, manifest: Manifest) -> None:
        """Blocks of it that still arrive are duplicates, not unknown."""
        self._recently_completed.append(manifest.wire_name[: codec.SHORT_HASH])
        if not self._follows(manifest):
            self.transport.unsubscribe(self._topic_of(manifest))

    @staticmethod
    def _follows(manifest: Manifest) -> bool:
        """Whether it comes without being asked for: then nothing but the body says what is in it."""
        return not manifest.parts

    def _continues(self, fetch: Fetch, manifest: Manifest) -> bool:
        """Whether it is what is being fetched; a coordinator that has been away serves it under another key."""
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
        """On with a task: what it stands on is here, or is fetched, after its manifest where that is an object."""
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
            Fetch(partial, self.send, self._response_time, kinds=self.kinds),
            received,
        )
        follows = self._follows(manifest)
        if not follows:
            self.transport.subscribe(self._topic_of(manifest))
        if self._fetch.partial.complete:  # an earlier process had it all, and died before it had a name
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
            topic, frame = before  # nobody will name it any more, or its task comes after a later one

        def take() -> FrameOutcome:
            prefix, index, data = blocks.unpack(frame)
            fetch = self._fetch
            if fetch is None or not fetch.is_named(prefix):
                if prefix in self._recently_completed:
                    return FrameOutcome(new=False)
                if topic == self._broadcast_now:  # of a round that is asked of others
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
        """A broadcast that follows its task on another topic, and has overtaken it."""
        try:
            prefix, _, _ = blocks.unpack(frame)
        except Rejected:
            return False  # whoever counts it says what is wrong with it
        fetched = self._fetch is not None and self._fetch.is_named(prefix)
        return not fetched and prefix not in self._recently_completed

    def _completed(self, fetch: Fetch, now: float) -> list[Received]:
        """All blocks are here: give the object its name, and go on with the task that waits for it."""
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
                continue  # asked by a coordinator that has forgotten its receipt; the next offer tells it anew
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
            self.epoch = 0  # new keys, new count
        return window

    def _epoch_was_accepted_without_clock(self, header: Header) -> bool:
        """Whether the epoch that is held was taken over while the clock judged nobody, and is far ahead of it now.

        Not before another coordinator speaks: the one of that epoch may conduct still, and its clock be wrong alone.
        """
        held = self.epoch if self.clock.ahead(self.epoch) else 0
        return header.sender == COORDINATOR and header.epoch < held and not self.clock.ahead(header.epoch)

    def _clock_advice(self) -> str:
        """What to do about an epoch that only a clock could judge which has shown a later time before."""
        if self.clock.is_believable or (seconds := ahead(self.epoch, self.clock.now())) <= 0:
            return ""
        return (
            f", {days(seconds)} ahead of this device's clock, which has shown later times itself and judges nothing: "
            f"set it; if it was ahead then and is right now, `protofleet enrol renew {self.me.name}`, install, "
            "start it again"
        )

    @property
    def asked(self) -> tuple[int, str] | None:
        """Round and phase of the task whose broadcast is coming."""
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
