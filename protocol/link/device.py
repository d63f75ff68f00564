"""Link a device to its coordinator.

The link sends the device's updates. It returns a task when the broadcast that the task needs is complete.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

from protofleet.protocol.link import indirect_manifest
from protofleet.protocol.link.base import (
    WINDOW,
    FrameOutcome,
    Link,
    Received,
    kind_counted,
    unverified_header,
)
from protofleet.protocol.link.clocks import Clock, ahead, days
from protofleet.protocol.link.epoch_proof import EpochProof
from protofleet.protocol.link.fetch import ObjectFetch, ResponseTime, indices
from protofleet.protocol.link.meter import UP
from protofleet.protocol.link.replay_window import ReplayWindow
from protofleet.protocol.link.run_part import RunPart
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
    CommandOutcome,
    CommandRequest,
    Delta,
    IndirectManifest,
    Manifest,
    Message,
    News,
    Offer,
    Probe,
    StepDown,
    Task,
    Update,
)
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.protocol.wire.reasons import Reason, Rejected
from protofleet.protocol.wire.topics import Topics


class DeviceLink(Link, RunPart):
    def __init__(
        self, me: Identity, keyring: Keyring, topics: Topics, transport: Transport, store: ObjectStore,
        sealed: bool = True, clock: Clock | None = None,
    ) -> None:  # fmt: skip
        Link.__init__(self, me, keyring, topics, transport, sealed, clock)
        RunPart.__init__(self, self, UP)
        self.store = store
        # Whether this link belongs to the run of the message that arrived last. False if the coordinator leads
        # several runs: then this link keeps its run, and `others` has the links of the other runs.
        self.follows = True
        self.others: list[DeviceLink] = []
        self.heard_run = ""  # run of the message that arrived last
        self.proof = EpochProof()
        # The newest task of each run whose broadcast is fetched later, because a broadcast of another run is being
        # fetched; the task that has waited longest is the first.
        self._postponed: dict[str, Received] = {}
        # Names of objects that were completed recently. A further block of such an object counts as a
        # duplicate, not as an unknown block.
        self._recently_completed: deque[bytes] = deque(maxlen=64)
        self._up = topics.up(me.name)
        self._down = topics.down(me.name)
        self._broadcast_now = topics.broadcast_now
        # Topic and frame of a block that arrived before its task.
        self._early_block: tuple[str, bytes] | None = None
        self._response_time = ResponseTime()
        # Time when the last new message of the coordinator arrived; a duplicate does not count.
        self.last_new_message_at = 0.0
        self._begin_run()

    def _begin_run(self) -> None:
        """Set what belongs to one run."""
        self.peer_forms: frozenset[str] = frozenset()  # forms of messages that the coordinator understands
        self.offered: dict[bytes, Offer] = {}  # name of an update's arrays -> offer of these arrays
        self._served: dict[bytes, Manifest] = {}
        self._layouts: dict[bytes, Layout] = {}  # layouts of the objects that are served
        self._sent: dict[bytes, bytearray] = {}
        # Round and phase of the inline update that was sent last, and the name of its arrays.
        self._inlined: tuple[int, str, bytes] | None = None
        # Round and phase of the last task, and the number of blocks that the coordinator requested in advance
        # in this task.
        self._credit = (0, "", 0)
        # Applies the delta of a task, and returns whether the store has the broadcast now. It is set when the device
        # knows the plan.
        self.apply_delta: Callable[[Delta, Offer], bool] | None = None
        # The delta that did not lead to the broadcast. The device does not fetch this delta again.
        self._useless_delta = b""
        self._fetch: ObjectFetch | None = None
        self._waiting: Received | None = None
        # Round of the last task for which this device has sent an update. The coordinator never returns to an
        # earlier round.
        self.least_round = 0

    @property
    def _links(self) -> list[DeviceLink]:
        """Return the links of all runs."""
        return [self, *self.others]

    def link_of(self, run: str) -> DeviceLink | None:
        """Return the link to which a message of this run belongs; None if the device does not have the run."""
        if self.follows:
            return self
        return next((link for link in self._links if link.run == run), None)

    @property
    def wake_at(self) -> float:
        return min((link._fetch.wake_at for link in self._links if link._fetch), default=float("inf"))

    @property
    def fetching(self) -> bytes:
        """Return the name of the broadcast that is being fetched, or b""."""
        return self._fetch.object if self._fetch else b""

    @property
    def progress(self) -> tuple[int, int] | None:
        """Return the number of received blocks of the broadcast, and the number of all its blocks.

        Return None if no broadcast is being fetched.
        """
        return (sum(self._fetch.partial.have), len(self._fetch.partial.have)) if self._fetch else None

    @property
    def has_early_block(self) -> bool:
        """Return whether this link keeps a block that arrived before its task. The block is not counted yet."""
        return self._early_block is not None

    def send(self, message: Message) -> None:
        self.publish(self._up, message, COORDINATOR)

    def send_update(self, update: Update, name: bytes) -> None:
        """Send an update whose arrays are an object of the store.

        A small object is sent inside the message. A large object is offered, and the coordinator requests its
        blocks.
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
        """Return whether the task requested the update's only block in advance.

        The answer is True only at the first call for a task. If the device sends the update again, it waits for a
        request of the coordinator.
        """
        round, phase, credit = self._credit
        asked = (update.round, update.phase) == (round, phase) and blocks == 1 <= credit
        if asked:
            self._credit = (0, "", 0)
        return asked

    def _can_still_offer(self, name: bytes) -> bool:
        """Return whether the object can be offered in the same blocks as before.

        Return False if the broker has a smaller packet limit after a restart.
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
                f"the manifest of an update of {manifest.size} bytes is larger than the packets of this broker, and "
                "this coordinator cannot receive a manifest as an object; raise the broker's packet limit to 131072"
            )
        of_manifest = self.with_new_key(indirect_manifest.store(manifest, self.store, self.block))
        self._serve(of_manifest)
        return IndirectManifest(manifest.object, manifest.size, manifest.key, of_manifest)

    @property
    def served(self) -> set[bytes]:
        """Return the names of the objects whose blocks the coordinator may request."""
        return set(self._served)

    def _serve(self, manifest: Manifest) -> None:
        self._served[manifest.object], self._sent[manifest.object] = manifest, bytearray(len(manifest.hashes))
        self._layouts[manifest.object] = self.layout_of(self.store, manifest.object)

    def forget(self, name: bytes) -> None:
        """Stop serving the blocks of an update."""
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
        """Handle a frame, and return the messages that are complete after this frame.

        Raise Rejected if the frame has a fault.
        """
        if blocks.is_block(frame):
            return [*self._link_that_fetches(frame)._block(topic, frame, now), *self._fetch_postponed(now)]
        opened: list[tuple[Header, Message]] = []

        def take() -> FrameOutcome:
            before = self.last_heard(COORDINATOR)
            found = self._open_and_keep_proof(topic, frame)
            if self.last_heard(COORDINATOR) != before:
                self.last_new_message_at = now
            if found:
                opened.append(found[:2])
            return FrameOutcome(new=found is not None)

        self.count_frame(topic, frame, kind_counted(unverified_header(frame)), take)
        done = [one for header, message in opened for one in self._message_of_run(header, message, now)]
        return [*done, *self._fetch_postponed(now)]

    def _open_and_keep_proof(self, topic: str, frame: bytes) -> tuple[Header, Message, Attachment] | None:
        """Verify and decode a message, and keep the state of the coordinator with the highest epoch."""
        try:
            found = self.open(topic, frame)
        except Rejected as fault:
            if fault.reason is Reason.STALE_EPOCH and topic == self.topics.coord_state:
                self.proof.refused(frame)
            raise
        if topic == self.topics.coord_state:
            self.proof.keep(frame)
        return found

    def wake(self, now: float) -> None:
        for link in self._links:
            if link._fetch:
                link._fetch.wake(now, WINDOW)

    @property
    def waiting_bytes(self) -> int:
        return sum(link._fetch.count.waiting for link in self._links if link._fetch)

    def stop_fetching(self) -> None:
        if fetch := self._fetch:
            self._ignore_blocks_of(fetch.manifest)
            self.end_fetch(fetch, forget=True)  # this broadcast is not needed any more
        self._fetch = self._waiting = None
        self._postponed.pop(self.run, None)

    def _must_wait(self) -> bool:
        """Return whether a broadcast of another run is being fetched, and its blocks still arrive."""
        return any(link._fetch and not link._fetch.is_silent for link in self._links if link is not self)

    def _fetch_postponed(self, now: float) -> list[Received]:
        """Fetch the broadcast of the task that has waited longest, if no other broadcast is being fetched."""
        done: list[Received] = []
        while self._postponed and not any(link._fetch and not link._fetch.is_silent for link in self._links):
            run, waiting = next(iter(self._postponed.items()))
            del self._postponed[run]
            if (
                (link := self.link_of(run))
                and isinstance(waiting.message, Task)
                and waiting.message.broadcast
            ):
                done += link._fetch_if_missing(waiting, waiting.message.broadcast, now)
        return done

    def _stop_all_fetches(self) -> None:
        """Stop the fetch of every run, because the store keeps only one unfinished object.

        The fetch of another run is stopped only if its blocks do not arrive any more. The coordinator sends that task
        again after the next hello of that run.
        """
        for link in self._links:
            link.stop_fetching()

    def _ignore_blocks_of(self, manifest: Manifest) -> None:
        """Count later blocks of an object as duplicates, not as unknown blocks."""
        self._recently_completed.append(manifest.wire_name[: codec.SHORT_HASH])
        if not self._follows(manifest):
            self.transport.unsubscribe(self._topic_of(manifest))

    @staticmethod
    def _follows(manifest: Manifest) -> bool:
        """Return whether the object is sent without a request.

        The manifest of such an object does not list parts, because the body itself describes the parts.
        """
        return not manifest.parts

    def _continues(self, fetch: ObjectFetch, manifest: Manifest) -> bool:
        """Return whether the manifest describes the object that is being fetched; if so, use the manifest's key.

        A coordinator that has restarted serves the same object with another key.
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

    def _message_of_run(self, header: Header, message: Message, now: float) -> list[Received]:
        if link := self.link_of(header.run):
            return link._message(header, message, now)
        # The device does not have this run, so it fetches nothing for it and serves nothing to it.
        unknown = Received(header.sender, message, header.run, header.epoch)
        return [] if isinstance(message, BlockRequest) else [unknown]

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
        """Return the task if its broadcast is in the store; otherwise fetch the broadcast.

        If the manifest is itself sent as an object, the manifest is fetched first.
        """
        if self.store.has(offer.object):
            return [replace(received, object=offer.object)]
        if delta := self._usable_delta(received.message):
            if not self.store.has(delta.manifest.object):
                return self._start_fetch(received, delta.manifest, now)
            if self.apply_delta and self.apply_delta(delta, offer):
                return [replace(received, object=offer.object)]
            self._useless_delta = delta.manifest.object
        if isinstance(offer, IndirectManifest):
            is_here = self.store.has(offer.manifest.object)
            offer = indirect_manifest.load(offer, self.store) if is_here else offer.manifest
        return self._start_fetch(received, offer, now)

    def _usable_delta(self, message: Message) -> Delta | None:
        """Return the delta of a task, or None if the reference is not stored or the delta has failed before."""
        delta = message.delta if isinstance(message, Task) else None
        if delta is None or self.apply_delta is None or delta.manifest.object == self._useless_delta:
            return None
        return delta if not delta.reference or self.store.has(delta.reference) else None

    def _start_fetch(self, received: Received, manifest: Manifest, now: float) -> list[Received]:
        if self._fetch and self._continues(self._fetch, manifest):
            self._waiting = received
            return []
        if self._must_wait():
            self._postponed[received.run] = received
            return []
        self._stop_all_fetches()
        partial = self.store.begin(manifest)
        self._fetch, self._waiting = (
            ObjectFetch(partial, self.send, self._response_time, kinds=self.kinds),
            received,
        )
        follows = self._follows(manifest)
        if not follows:
            self.transport.subscribe(self._topic_of(manifest))
        # All blocks may be here already: an earlier process received all blocks, but ended before it could store the
        # object under its name.
        if self._fetch.partial.complete:
            return self._completed(self._fetch, now)
        if not follows:
            self._fetch.fill(WINDOW, now)
            return []
        self._fetch.await_unasked(now)
        early, self._early_block = self._early_block, None
        return self._block(*early, now) if early else []

    def _link_that_fetches(self, frame: bytes) -> DeviceLink:
        """Return the link that fetches the object of this block; if no link fetches the object, return this link."""
        prefix = frame[3 : 3 + codec.SHORT_HASH]
        return next((link for link in self.others if link._fetch and link._fetch.is_named(prefix)), self)

    def _block(self, topic: str, frame: bytes, now: float) -> list[Received]:
        if topic == self._broadcast_now and self._is_early(frame):
            before, self._early_block = self._early_block, (topic, frame)
            if before is None:
                return []
            # Only one block is kept. So the block that was kept before is handled now.
            topic, frame = before

        def take() -> FrameOutcome:
            prefix, index, data = blocks.unpack(frame)
            fetch = self._fetch
            if fetch is None or not fetch.is_named(prefix):
                if prefix in self._recently_completed:
                    return FrameOutcome(new=False)
                if topic == self._broadcast_now:  # the block belongs to a task of other devices
                    return FrameOutcome(new=False, for_us=False)
                raise Rejected(
                    Reason.UNKNOWN_OBJECT,
                    f"a block of {prefix.hex()} has arrived, but this object is not being fetched",
                )
            if topic not in (self._down, self._broadcast_now, self._topic_of(fetch.manifest)):
                raise Rejected(Reason.WRONG_TOPIC, f"this block must not be sent on {topic}")
            size, spans, fresh = fetch.take(index, data, now)
            return FrameOutcome(held=size, spans=spans, new=fresh)

        fresh, fetch = self.count_frame(topic, frame, "block", take), self._fetch
        if not fresh or fetch is None:
            return []
        if not fetch.partial.complete:
            fetch.fill(WINDOW, now)
            return []
        return self._completed(fetch, now)

    def _is_early(self, frame: bytes) -> bool:
        """Return whether a block may belong to a task that has not arrived yet.

        The task is sent on another topic than the block, so the block may arrive first.
        """
        try:
            prefix, _, _ = blocks.unpack(frame)
        except Rejected:
            return False  # the caller reports the damaged block when it counts the block
        fetched = self._fetch is not None and self._fetch.is_named(prefix)
        return not fetched and prefix not in self._recently_completed

    def _completed(self, fetch: ObjectFetch, now: float) -> list[Received]:
        """Store the complete object under its name.

        Return the task that needs the object, if nothing else is missing. Otherwise fetch the missing object.
        """
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
                # This device stopped serving the object when the receipt for the update arrived. If the coordinator
                # still requests blocks of the object, the coordinator has forgotten this receipt.
                continue
            sent = self._sent[name]
            wanted, layout = indices(ranges, len(manifest.hashes)), self._layouts[name]
            self.block_qos.asked(len(wanted), request.again)
            for index in wanted:
                self.send_block(self._up, self.store, manifest, index, not sent[index], layout)
                sent[index] = 1

    def _metric_names_of(self, header: Header) -> tuple[str, ...]:
        return self.metric_names

    def _check_content(self, message: Message, attachment: Attachment) -> None:
        link = self.link_of(self.heard_run)
        if isinstance(message, (CommandRequest, CommandOutcome, News)):
            raise Rejected(Reason.MALFORMED, "commands, results and news are for operators, not for devices")
        if isinstance(message, (Probe, StepDown)):
            raise Rejected(
                Reason.MALFORMED, f"a {codec.KINDS[type(message)]} is for coordinators, not for devices"
            )
        if isinstance(message, Task) and link and message.round < link.least_round:
            raise Rejected(
                Reason.STALE_ROUND,
                f"the task is of round {message.round}, but a task of round {link.least_round} was answered already",
            )
        if isinstance(message, Task) and message.broadcast:
            self._check_offer(message.broadcast)
            if message.delta:
                self._check_offer(message.delta.manifest)

    def _window(self, header: Header, holder: str) -> ReplayWindow:
        before = self._windows.get(header.sender)
        if self._epoch_was_accepted_without_clock(header):
            self._windows.pop(COORDINATOR, None)
        window = super()._window(header, holder)
        if header.sender == COORDINATOR and before is not None and window is not before:
            self.epoch = 0  # A coordinator with new keys counts its epochs from the start.
        return window

    def _epoch_was_accepted_without_clock(self, header: Header) -> bool:
        """Return whether the stored epoch is far ahead of the clock, and the header has an older, plausible epoch.

        In this case, the device accepted the stored epoch while its clock was not believed. The coordinator with
        this epoch may still run, with a wrong clock. So the device keeps the stored epoch until another coordinator
        sends a message.
        """
        held = self.epoch if self.clock.ahead(self.epoch) else 0
        return header.sender == COORDINATOR and header.epoch < held and not self.clock.ahead(header.epoch)

    def _clock_advice(self) -> str:
        """Return advice if the clock is not believed and the stored epoch is ahead of the clock, otherwise "".

        A clock that was set back is not believed, and an epoch cannot be checked against such a clock.
        """
        if self.clock.is_believable or (seconds := ahead(self.epoch, self.clock.now())) <= 0:
            return ""
        return (
            f", {days(seconds)} ahead of this device's clock. The clock has shown a later time before, so it was "
            f"wrong then or is wrong now: set it. If it was wrong then, run `protofleet enrol renew {self.me.name}`, "
            "install the new record and start the device again"
        )

    @property
    def asked(self) -> tuple[int, str] | None:
        """Return the round and the phase of the task whose broadcast is being fetched."""
        received = self._waiting or self._postponed.get(self.run)
        waiting = received.message if received else None
        return (waiting.round, waiting.phase) if isinstance(waiting, Task) else None

    def _check_header(self, header: Header, topic: str) -> None:
        if header.sender != COORDINATOR:
            raise Rejected(
                Reason.WRONG_TOPIC, f"{header.sender} sent a message where only the coordinator may send"
            )
        if header.kind == "state":
            expected = self.topics.coord_state
        else:
            expected = self._down
            if header.recipient != self.me.name:
                raise Rejected(Reason.WRONG_RECIPIENT, f"for {header.recipient[:64]}")
        if topic != expected:
            raise Rejected(Reason.WRONG_TOPIC, f"a {header.kind} must not be sent on {topic}")
        if header.epoch > self.epoch and (seconds := self.clock.ahead(header.epoch)):
            raise Rejected(
                Reason.EPOCH_AHEAD,
                f"epoch {header.epoch} of the coordinator is {days(seconds)} ahead of this device's clock: set the "
                "clock that is wrong; if the coordinator's clock was wrong, start the coordinator again",
            )
        if header.epoch < self.epoch:
            message = f"this message is of epoch {header.epoch}, {self.epoch} is the newest epoch so far"
            raise Rejected(Reason.STALE_EPOCH, message + self._clock_advice())
        self.epoch, self.heard_run = header.epoch, header.run
        if self.follows:
            self.run = header.run
