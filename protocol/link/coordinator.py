"""Link the coordinator to its devices.

The coordinator pulls the answers within one budget of blocks, and serves each broadcast once for a whole
cohort.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Final, Protocol

from protofleet.protocol.link import indirect_manifest
from protofleet.protocol.link.base import INLINE, WINDOW, FrameOutcome, Link, Received
from protofleet.protocol.link.broadcast import UNASKED, Broadcast, ErrorScope
from protofleet.protocol.link.clocks import Clock, days
from protofleet.protocol.link.fetch import RETRY_SECONDS, Fetch, ResponseTime, indices
from protofleet.protocol.link.meter import DOWN
from protofleet.protocol.link.progress import TransferProgress
from protofleet.protocol.link.rate_limit import RateLimiter
from protofleet.protocol.link.replay_window import ReplayWindow
from protofleet.protocol.security.envelope import Header, contents, read_header, verified
from protofleet.protocol.security.keys import Identity, Keyring
from protofleet.protocol.storage.store import ObjectStore
from protofleet.protocol.transport.base import Transport
from protofleet.protocol.wire import blocks, codec, forms
from protofleet.protocol.wire.arrays import Body
from protofleet.protocol.wire.codec import Attachment, TaskId
from protofleet.protocol.wire.messages import (
    BlockRequest,
    Bye,
    Hello,
    IndirectManifest,
    Manifest,
    Message,
    Offer,
    Refusal,
    State,
    Task,
    Update,
)
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.protocol.wire.printable import printable
from protofleet.protocol.wire.reasons import Reason, Rejected
from protofleet.protocol.wire.topics import Topics

# Blocks in flight from all devices together: 16 MiB, which is below the queue limit of any broker.
BUDGET: Final = 256
MOST_CREDIT: Final = BUDGET // 2  # blocks of the budget that are asked for in advance

Stores = Callable[[str], ObjectStore]  # returns the spool of a device


class AdmissionController(Protocol):
    """The part that decides which answers are fetched, and that is told of unusable answers."""

    def is_expected(self, update: Update) -> bool: ...

    def admit(self, update: Update, size: int, name: bytes) -> bool: ...

    def unusable(self, update: Update, fault: Rejected) -> None: ...


class AdmitNothing:
    """An admission controller for the time while no question is open."""

    def is_expected(self, update: Update) -> bool:
        return False

    def admit(self, update: Update, size: int, name: bytes) -> bool:
        return False

    def unusable(self, update: Update, fault: Rejected) -> None:
        """Do nothing, because no answer is waited for."""


class UnusableAnswer(Rejected):
    """The fault that makes an answer to the open question unusable.

    Its device is told of the fault, and the coordinator does not wait for the device any longer.
    """

    def __init__(self, update: Update, fault: Rejected) -> None:
        super().__init__(fault.reason, fault.detail)
        self.update = update


@dataclass(frozen=True, slots=True)
class InlineAnswer:
    """The arrays of an answer that came inside its message, hashed and parsed once."""

    data: bytes
    name: bytes
    arrays: Body
    first: bool  # False if the same answer has brought the arrays before

    @property
    def size(self) -> int:
        return len(self.data)


# After these faults the device may send the same answer in a usable form: sealed to the coordinator's newer
# key, or after an update of either end.
NOT_FINAL: Final = frozenset({Reason.NOT_FOR_US, Reason.VERSION})


class CoordinatorLink(Link):
    def __init__(
        self, me: Identity, keyring: Keyring, topics: Topics, transport: Transport, stores: Stores, run: str,
        sealed: bool = True, clock: Clock | None = None, who: str = "",
    ) -> None:  # fmt: skip
        """Create the link of a coordinator.

        `who` says where this coordinator runs. Another coordinator that finds this one reads it.
        """
        super().__init__(me, keyring, topics, transport, DOWN, sealed, clock)
        self.run, self.epoch, self.who, self._stores = run, me.boot, who, stores
        self.admission_controller: AdmissionController = AdmitNothing()
        self.rate_limiter = RateLimiter(keyring)
        # Called with the sender of each new message.
        self.on_message: Callable[[str], None] = lambda device: None
        # Called every few seconds with the progress of an answer that takes long.
        self.on_progress: Callable[[str, TransferProgress], None] = lambda device, progress: None
        self.error_scope: ErrorScope = lambda device: contextlib.nullcontext()
        self._with_unfinished: set[str] = set()  # devices that left unfinished answers behind
        self._subscribed_topics = set(topics.coordinator_subscriptions())
        self._broadcasts: dict[bytes, Broadcast] = {}
        self.fetches: dict[str, tuple[Fetch, Received]] = {}
        # Seconds before the next request, by device whose fetch was given up while the question is open.
        self._retry_seconds: dict[str, float] = {}
        self._response_time = ResponseTime()  # shared by all fetches
        self._inlined: dict[str, tuple[int, str, bytes]] = {}  # device -> the inline answer that it sent last
        # Device -> the answer that it offered last, if the manifest of the answer is an object.
        self._indirect_offers: dict[str, IndirectManifest] = {}
        # True once the link has received a message of its own. Then it would receive the messages of a later
        # coordinator too.
        self.hears_own_messages = False
        self.device_forms: dict[str, frozenset[str]] = {}  # device -> forms of messages that it understands
        self._may_follow = True  # whether the open broadcast may follow the tasks without a request
        # Devices that were asked for the only block of their answer together with the task, and that have not
        # answered.
        self._credited: set[str] = set()
        self._gives_credit = False
        # Devices that get the open broadcast after their tasks, without a request.
        self._followers: list[str] = []

    @property
    def wake_at(self) -> float:
        fetches = (fetch.wake_at for _, fetch in self._begun())
        return min((*fetches, *(b.wake_at for b in self._broadcasts.values())), default=float("inf"))

    def wake(self, now: float) -> None:
        in_flight = self._in_flight(now)
        for device, fetch in self._begun():
            with self.error_scope(device):
                fetch.wake(now, max(1, _blocks_allowed(fetch.in_flight(now), in_flight)))
        self._share_budget(now)
        for broadcast in self._broadcasts.values():
            broadcast.wake(now)

    def subscribe_except(self, unheard: Collection[str]) -> None:
        """Subscribe to all devices except these, so that the broker queues nothing from them.

        A topic filter of MQTT cannot exclude a device, so the link names all other devices.
        """
        topics, wanted = self.topics, set(self.topics.coordinator_subscriptions())
        if unheard:
            heard = [device for device in self.keyring if device not in unheard and device != COORDINATOR]
            wanted = {topics.coord_state, *map(topics.up, heard), *map(topics.device_state, heard)}
        for topic in sorted(wanted - self._subscribed_topics):
            self.transport.subscribe(topic)
        for topic in sorted(self._subscribed_topics - wanted):
            self.transport.unsubscribe(topic)
        self._subscribed_topics = wanted

    def send(self, device: str, message: Message) -> None:
        """Send a message to a device, unless the enrolment of the device has ended.

        The key is looked up only once, because the enrolment may end at any moment.
        """
        with self.error_scope(device):
            if (known := self.keyring.get(device)) is not None:
                self.publish(self.topics.down(device), message, device, receive=known.receive)

    def offer(self, manifest: Manifest, store: ObjectStore, cohort: list[str], holding: set[str]) -> Offer:
        """Serve an object from now on, and return the offer for the tasks.

        Only one broadcast is open at a time, so the link serves no other object. The object is split into
        blocks anew if the broker has come back with a smaller limit.
        """
        if manifest.object not in self._broadcasts or not self.can_still_serve:
            self._broadcasts = {
                one.object: Broadcast(one, self._sender(one, store), self.error_scope)
                for one in self._manifests_to_serve(manifest, store)
            }
        self._followers = []
        # All devices receive a block that follows the tasks. So a large block is not sent in this way for a
        # few devices.
        few = 2 * len(cohort) < len(self.device_forms)
        self._may_follow = manifest.size <= blocks.DEFAULT_BLOCK or not few
        # An answer to a small broadcast is most often small too, and then travels inside its message.
        self._credited, self._gives_credit = set(), manifest.size > INLINE and len(cohort) <= MOST_CREDIT
        for broadcast in self._broadcasts.values():
            sent_unasked = {device for device in cohort if self._follows(device, broadcast.manifest)}
            broadcast.expect(cohort, holding | sent_unasked)
        whole, *of_manifest = (broadcast.manifest for broadcast in self._broadcasts.values())
        return IndirectManifest(whole.object, whole.size, whole.key, of_manifest[0]) if of_manifest else whole

    @property
    def can_still_serve(self) -> bool:
        """Return whether the open broadcast can still be sent in the blocks that it was split into."""
        return not self._broadcasts or self.still_fits(*(one.manifest for one in self._broadcasts.values()))

    def _manifests_to_serve(self, manifest: Manifest, store: ObjectStore) -> list[Manifest]:
        if manifest.block > self._capacity:
            manifest = store.manifest(manifest.object, self.block)
        served = [self.with_new_key(manifest)]
        if not self.fits(manifest):
            served.append(self.with_new_key(indirect_manifest.store(manifest, store, self.block)))
        return served

    def _follows(self, device: str, manifest: Manifest) -> bool:
        one_block = len(manifest.hashes) == 1 and self._may_follow
        return one_block and forms.INLINE in self.device_forms.get(device, ())

    def task(self, device: str, task: Task, holds: bool) -> None:
        """Send a task, and let its broadcast follow if the device does not have to request it.

        Only a broadcast of one block follows its task.
        """
        offer = task.broadcast
        follows = isinstance(offer, Manifest) and self._follows(device, offer)
        credit = self._credit_for(device) if offer else 0
        self.send(device, replace(task, follows=follows, credit=credit))
        if follows and not holds:
            self._followers.append(device)

    def _credit_for(self, device: str) -> int:
        if not self._gives_credit or forms.CREDIT not in self.device_forms.get(device, ()):
            return 0
        self._credited.add(device)
        return 1

    def flush(self, now: float) -> None:
        """Send the broadcast that follows the tasks of this turn, once for all devices."""
        followers, self._followers = self._followers, []
        if not followers:
            return
        for broadcast in list(self._broadcasts.values())[:1]:
            with self.error_scope(followers[0]):
                broadcast.follow(followers, now)

    def arrived(self, topic: str, frame: bytes, now: float) -> list[Received]:
        """Return the messages that are complete after this frame.

        Raise Rejected if the frame has a fault.
        """
        if blocks.is_block(frame):
            return self._block(topic, frame, now)
        if topic == self.topics.coord_state:
            return self._receive_own_state(frame, now)
        opened: list[tuple[Header, Message, InlineAnswer | Offer | None]] = []
        unusable: list[UnusableAnswer] = []

        def take() -> FrameOutcome:
            self.rate_limiter.charge_frame(self.device_of_topic(topic), now)
            try:
                found = self.open(topic, frame)
                if found is None:
                    return FrameOutcome(new=False)
                header, message, attachment = found
                content = (
                    self._inline(header, message, attachment) if isinstance(attachment, bytes) else attachment
                )
            except UnusableAnswer as answer:  # the admission controller counts it
                unusable.append(answer)
                return FrameOutcome(fault=answer.reason)
            opened.append((header, message, content))
            if isinstance(content, InlineAnswer):
                return FrameOutcome(content.arrays.sizes(self.kinds), first=content.first)
            return FrameOutcome()

        try:
            self._count_frame(topic, frame, self.kind_of(frame), take)
        except Rejected as fault:
            # The device of the topic has signed the frame: `open` has checked this.
            if fault.reason is Reason.STALE_BOOT:
                self._refuse_older_process(self.device_of_topic(topic))
            if fault.reason is Reason.BOOT_AHEAD:
                self._refuse_boot(frame, fault.detail)
            raise
        for header, message, _ in opened:
            self._note_new_connection(header, message)
            self._report_message(header)
        for answer in unusable:
            self.on_message(answer.update.device)
            self.admission_controller.unusable(answer.update, answer)
        try:
            return [done for found in opened for done in self._message(*found, now)]
        except Rejected as fault:  # the frame is good, but the coordinator cannot get the offered object now
            self.meter.rejected[fault.reason] += 1
            raise

    def _note_new_connection(self, header: Header, message: Message) -> None:
        """Start counting missing messages anew when a device connects or changes its coordinator.

        A device may have sent messages before it knew this coordinator, or over a connection that it has
        lost. These are not missing, because they had no receiver, and the device repeats the important ones.
        """
        # The broker may have kept this message for the coordinator.
        birth = isinstance(message, State) and message.online
        if header.sequence and (birth or header.epoch != self.epoch):
            self._windows[header.sender].count_from_next()

    def _report_message(self, header: Header) -> None:
        """Report the sender of a message, except for a will and for a message to an earlier coordinator.

        The broker sends the will, so it does not show that the device is there.
        """
        if header.sequence and header.epoch == self.epoch:
            self.on_message(header.sender)

    def _receive_own_state(self, frame: bytes, now: float) -> list[Received]:
        """Ignore the coordinator's own messages, and pass on the messages of a later coordinator.

        Their bytes are not counted: the meter counts only the bytes between devices and their coordinator.
        """
        result = "duplicate"
        try:
            self.rate_limiter.charge_own_name(now)
            header, start, _ = verified(frame, {COORDINATOR: self.me.keys.public})
            self.hears_own_messages |= header.epoch == self.epoch
            if header.federation != self.topics.federation or header.epoch < self.epoch:
                return []
            state, _ = codec.decode(header.kind, contents(frame, header, start, None), COORDINATOR, TaskId())
            if not isinstance(state, State) or not self._is_later_coordinator(header, state):
                return []
            result = "accepted"
        except Rejected as fault:
            self.meter.rejected[fault.reason] += 1
            result = fault.reason.value
            raise
        finally:
            self.meter.count_message(self.peer_direction, "state", result)
        return [Received(COORDINATOR, state, header.run, header.epoch)]

    def _is_later_coordinator(self, header: Header, state: State) -> bool:
        """Return whether the state comes from a coordinator that replaces this one.

        If two coordinators were started in the same second, they have the same epoch. Then the one with the
        higher `who` goes on.
        """
        if header.epoch == self.epoch:
            return state.who > self.who != ""
        if seconds := self.clock.ahead(header.epoch):
            raise Rejected(
                Reason.EPOCH_AHEAD,
                f"a coordinator ({printable(state.who) or 'it does not say where'}) has said epoch {header.epoch}, "
                f"{days(seconds)} ahead of this clock: its clock was wrong, or this one is; stop it if it still runs",
            )
        return True

    def _refuse_older_process(self, device: str) -> None:
        """Tell the older of two processes with the same name that a newer process exists.

        The newer process ignores this message.
        """
        boot, _ = self.last_heard(device)
        message = (
            f"a later process has come under the name {device} (boot {boot}), or this one's clock has gone back; "
            "let one of them run, and start it again"
        )
        self.send(device, Refusal(message, boot))

    def _window(self, header: Header, holder: str) -> ReplayWindow:
        """Return the window of the sender, and drop a stored boot far ahead of the clock.

        Only a version that did not check boots could accept such a boot; it stored no holder. A version that
        checks stores the holder. If one of its boots is ahead of the clock now, then the clock is slow now,
        or the device's clock and the coordinator's clock were both ahead. In the second case, a renewal of
        the device's record drops the window.
        """
        known = self._windows.get(header.sender, ReplayWindow())
        nobodys = known.holder == "" and self.clock.ahead(known.boot) > 0
        if nobodys and header.boot < known.boot and not self.clock.ahead(header.boot):
            del self._windows[header.sender]
        return super()._window(header, holder)

    def _refuse_boot(self, frame: bytes, message: str) -> None:
        """Tell a device that its boot is not valid, if the frame is a hello."""
        header, start = read_header(frame)
        with contextlib.suppress(Rejected):
            hello, _ = self._contents(frame, header, start)
            if isinstance(hello, Hello):
                self.send(header.sender, refusal_of(message, hello, header.boot, header.sequence))

    def abandon(self, device: str | None = None, for_good: bool = False) -> None:
        """Stop the fetch of one device's answer, or of all answers if `device` is None.

        None means that the round is over, and the received parts are deleted. If one device has gone, the
        received part of its answer is kept, unless `for_good` is set.
        """
        self._credited = set() if device is None else self._credited - {device}
        for name in list(self.fetches) if device is None else [device]:
            if held := self.fetches.pop(name, None):
                self._retry_seconds[name] = held[0].retry
                self._end_fetch(held[0], for_good or device is None, name)
                self._with_unfinished.add(name)
        if device is None:
            for name in self._with_unfinished:
                self._stores(name).forget_unfinished()
            self._with_unfinished, self._retry_seconds = set(), {}

    @property
    def has_unfinished(self) -> bool:
        return bool(self.fetches or self._with_unfinished)

    def is_silent(self, device: str) -> bool:
        """Return whether no blocks of the answer that the device offered arrive."""
        held = self.fetches.get(device)
        return held is None or held[0].is_silent

    def give_up(self, device: str) -> None:
        """Delete the received part of a device's answer, because other answers need the space.

        The device will offer the answer again.
        """
        self.abandon(device, for_good=True)
        self._stores(device).forget_unfinished()

    def _message(
        self, header: Header, message: Message, attachment: InlineAnswer | Offer | None, now: float
    ) -> list[Received]:
        received = Received(
            header.sender, message, header.run, header.epoch, sequence=header.sequence, boot=header.boot
        )
        match message:
            case BlockRequest():
                requests = [BlockRequest(message.object, message.ranges, message.again)]
                requests += [BlockRequest(name, ranges, message.again) for name, ranges in message.more]
                if sum(self._requested(header.sender, request, now) for request in requests):
                    self.rate_limiter.frame_was_useful(header.sender)
                return []
            case Update():
                return self._update(received, message, attachment, now)
        return [received]

    def _requested(self, device: str, request: BlockRequest, now: float) -> int:
        broadcast = self._broadcasts.get(request.object)
        if broadcast is None:
            return 0
        self.block_qos.asked(len(indices(request.ranges, len(broadcast.manifest.hashes))), request.again)
        return broadcast.requested(device, request, now)

    def _update(
        self, received: Received, update: Update, attachment: InlineAnswer | Offer | None, now: float
    ) -> list[Received]:
        assert attachment is not None
        comes = update.follows and received.sender in self._credited
        self._credited.discard(received.sender)
        # These blocks are no fault if the answer is not admitted.
        if comes and isinstance(attachment, Manifest):
            self._recently_completed.append(_name_of_blocks(received.sender, attachment))
        if received.run != self.run:
            return []  # the answer is of another run; its device has been told of this run by now
        name = attachment.name if isinstance(attachment, InlineAnswer) else attachment.object
        if not self.admission_controller.admit(update, attachment.size, name):
            return []
        store = self._stores(received.sender)
        with self._reject_if_unusable(update):
            if isinstance(attachment, InlineAnswer):
                store.put_bytes(attachment.data, name)
                return [replace(received, message=replace(update, arrays=attachment.arrays), object=name)]
            if store.has(name):
                return self._complete(received, update, name)
            return self._fetch(received, attachment, store, now, comes)
        return []

    @contextlib.contextmanager
    def _reject_if_unusable(self, update: Update) -> Iterator[None]:
        """Report an unusable answer to the admission controller.

        It does not matter whether the answer was fetched now or stored before. A full disk is the
        coordinator's own fault: the answer is good, and the device will offer it again.
        """
        try:
            yield
        except Rejected as fault:
            if fault.reason is Reason.NO_ROOM:
                raise
            self.admission_controller.unusable(update, fault)

    def _fetch(
        self, received: Received, offer: Offer, store: ObjectStore, now: float, comes: bool = False
    ) -> list[Received]:
        """Fetch the blocks of an answer.

        If the manifest of the answer is an object, its blocks are fetched first. `comes` says that the answer
        has only one block and that the device sends it without a request.
        """
        if isinstance(offer, IndirectManifest):
            self._indirect_offers[received.sender] = offer
            is_here = store.has(offer.manifest.object)
            offer = indirect_manifest.load(offer, store) if is_here else offer.manifest
        attachment, device = offer, received.sender
        held = self.fetches.get(device)
        if held and (held[0].rekeyed(attachment) or held[0].awaits(attachment)):
            self.fetches[device] = (held[0], received)
        else:
            self.abandon(device)
            # A new offer is no progress, so the pause grows.
            retry = 2 * self._retry_seconds.pop(device, RETRY_SECONDS / 2)
            partial = store.begin(attachment)
            fetch = Fetch(
                partial, lambda request: self.send(device, request), self._response_time, retry, self.kinds
            )
            self.fetches[device] = (fetch, received)
            if comes:
                fetch.await_unasked(now)
                # Put it before all fetches that wait.
                self.fetches = {device: (fetch, received), **self.fetches}
            # An earlier process had received all blocks, and died before it stored the object.
            if fetch.partial.complete:
                return self._completed(device, now)
        self._share_budget(now)
        return []

    def _on_unusable(self, header: Header, fault: Rejected) -> None:
        if header.kind != "update" or fault.reason in NOT_FINAL:
            return
        update = Update(header.sender, header.round, header.phase, 0, header.base)
        window = self._windows[header.sender]
        if self._is_expected(header, update) and window.is_new(header.boot, header.sequence):
            raise UnusableAnswer(update, fault)

    def _is_expected(self, header: Header, update: Update) -> bool:
        return header.run == self.run and self.admission_controller.is_expected(update)

    def _inline(self, header: Header, message: Message, data: bytes) -> InlineAnswer:
        assert isinstance(message, Update), "nothing else has bytes of its own"
        name = hashlib.sha256(data).digest()
        answer = (message.round, message.phase, name)
        before, self._inlined[message.device] = self._inlined.get(message.device), answer
        try:
            return InlineAnswer(data, name, _body(data), answer != before)
        except Rejected as fault:
            if self._is_expected(header, message):
                raise UnusableAnswer(message, fault) from None
            raise

    def _complete(self, received: Received, update: Update, name: bytes) -> list[Received]:
        arrays = self._stores(received.sender).open(name)
        return [replace(received, message=replace(update, arrays=arrays), object=name)]

    def device_of_topic(self, topic: str) -> str:
        """Return the only device that may publish on this topic, or "" if there is none."""
        place = self.topics.parse(topic)
        return place.device if place else ""

    def _receiver(self, topic: str) -> str:
        return self.device_of_topic(topic)

    @property
    def waiting_bytes(self) -> int:
        return sum(fetch.count.waiting for fetch, _ in self.fetches.values())

    def _sender_on(self, topic: str) -> str:
        device = self.device_of_topic(topic)
        return (
            device if device in self._windows else ""
        )  # without a verified frame, anybody can have chosen this name

    def _block(self, topic: str, frame: bytes, now: float) -> list[Received]:
        place = self.topics.parse(topic)
        device = place.device if place and place.kind == "up" else ""
        held = self.fetches.get(device)

        def take() -> FrameOutcome:
            self.rate_limiter.charge_block(device, now)
            prefix, index, data = blocks.unpack(frame)
            if not device:
                raise Rejected(Reason.WRONG_TOPIC, f"a block on {topic}")
            if held is None or not held[0].is_named(prefix):
                if device.encode() + prefix in self._recently_completed:
                    return FrameOutcome(new=False)
                raise Rejected(
                    Reason.UNKNOWN_OBJECT, f"a block of {prefix.hex()}, which is not being fetched"
                )
            size, spans, fresh = held[0].take(index, data, now)
            if fresh:
                self.rate_limiter.block_was_useful(device)
            return FrameOutcome(held=size, spans=spans, new=fresh)

        if not self._count_frame(topic, frame, "block", take) or held is None:
            return []
        self.on_message(device)
        if not held[0].partial.complete:
            self._share_budget(now)
            if progress := held[0].progress(now):
                self.on_progress(device, progress)
            return []
        return self._completed(device, now)

    def _completed(self, device: str, now: float) -> list[Received]:
        """Name the object, as all of its blocks are here, and pass on the answer that it belongs to."""
        fetch, received = self.fetches.pop(device)
        self._recently_completed.append(_name_of_blocks(device, fetch.manifest))
        self._share_budget(now)
        assert isinstance(received.message, Update)
        with self._reject_if_unusable(received.message):
            fetch.partial.finish()
            offer = self._indirect_offers.get(device)
            if offer and offer.manifest.object == fetch.object:
                return self._fetch(received, offer, self._stores(device), now)
            return self._complete(received, received.message, fetch.object)
        return []

    def _share_budget(self, now: float) -> None:
        """Share the budget among the fetches in the order in which they came.

        A fetch that begins gets all the blocks that it needs, or at least half a window. The reason is that a
        request costs both ends as much work as a block.
        """
        in_flight = self._in_flight(now)
        if in_flight >= BUDGET:
            return
        for device, (fetch, _) in list(self.fetches.items()):
            before = fetch.in_flight(now)
            capacity = _blocks_allowed(before, in_flight)
            if not fetch.begun and capacity < min(fetch.unasked, WINDOW // 2):
                return
            with self.error_scope(device):
                if capacity and fetch.unasked:
                    fetch.fill(capacity, now)
                in_flight += fetch.in_flight(now) - before

    def _in_flight(self, now: float) -> int:
        return len(self._credited) + sum(fetch.in_flight(now) for _, fetch in self._begun())

    def _begun(self) -> Iterator[tuple[str, Fetch]]:
        """Yield the fetches that have begun.

        All other fetches came later, and wait for their share of the budget.
        """
        held = ((device, fetch) for device, (fetch, _) in self.fetches.items())
        return itertools.takewhile(lambda one: one[1].begun, held)

    def _sender(self, manifest: Manifest, store: ObjectStore) -> Callable[[str | None, int, bool], None]:
        everyone = self.topics.broadcast(manifest.wire_name.hex())
        layout = self.layout_of(store, manifest.object)

        def send(device: str | None, index: int, fresh: bool) -> None:
            topic = everyone
            if device is not None:
                topic = self.topics.down(device) if device != UNASKED else self.topics.broadcast_now
            self.send_block(topic, store, manifest, index, fresh, layout)

        return send

    def _check_content(self, message: Message, attachment: Attachment) -> None:
        if not isinstance(message, (Hello, State, Update, BlockRequest, Bye)):
            raise Rejected(
                Reason.MALFORMED, f"a {codec.KINDS[type(message)]} is sent by the coordinator alone"
            )
        if isinstance(message, Update):
            if attachment is None:
                raise Rejected(Reason.MALFORMED, "an update without arrays")
            if isinstance(attachment, bytes) and len(attachment) > INLINE:
                raise Rejected(Reason.TOO_LARGE, f"an inline body of {len(attachment)} bytes, over {INLINE}")
            if isinstance(attachment, (Manifest, IndirectManifest)):
                self._check_offer(attachment)

    def _check_header(self, header: Header, topic: str) -> None:
        # The topic decides, because the sender may be anybody with a key, even this coordinator.
        place, kind = self.topics.parse(topic), "device_state" if header.kind == "state" else "up"
        if place is None or (place.kind, place.device) != (kind, header.sender):
            raise Rejected(Reason.WRONG_TOPIC, f"a {header.kind} of {header.sender[:64]} on {topic}")
        if header.boot > self.last_heard(header.sender)[0] and (seconds := self.clock.ahead(header.boot)):
            raise Rejected(
                Reason.BOOT_AHEAD,
                f"boot {header.boot} of {header.sender} lies {days(seconds)} ahead of the coordinator's clock: set "
                f"the clock that is wrong; if it was the device's, `protofleet enrol renew {header.sender}` and "
                "install let it count anew",
            )


def _name_of_blocks(device: str, manifest: Manifest) -> bytes:
    return device.encode() + manifest.wire_name[: codec.SHORT_HASH]


def _blocks_allowed(own: int, in_flight: int) -> int:
    """Return the number of blocks that one fetch may have in flight.

    `own` is the number that it has, and `in_flight` is the number of all fetches together.
    """
    return max(0, min(WINDOW, BUDGET - (in_flight - own)))


def refusal_of(message: str, hello: Hello, boot: int, sequence: int) -> Refusal:
    """Return the refusal of a hello.

    If the device checks it, the refusal names the hello that it answers. A stored refusal then does not end a
    later process.
    """
    return Refusal(message, answers=(boot, sequence) if forms.ANSWERS in hello.can else ())


def _body(data: bytes) -> Body:
    view = memoryview(bytearray(data))  # the bytes are copied because torch warns about read-only buffers
    return Body(lambda start, stop: view[start:stop], len(data))
