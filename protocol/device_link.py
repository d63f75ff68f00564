"""The device's end: answers go up, tasks come down when the broadcast they stand on is here in full."""

from __future__ import annotations

from dataclasses import replace

from protocol import blocks, codec
from protocol.codec import Attachment
from protocol.fetch import Fetch, indices
from protocol.keys import Identity, Keyring
from protocol.link import WINDOW, Link, Received, Taken
from protocol.messages import Manifest, Message, Task, Update, Want
from protocol.meter import UP
from protocol.reasons import Reason, Rejected
from protocol.seal import COORDINATOR, Header
from protocol.store import ObjectStore
from protocol.topics import Topics
from protocol.transport import Transport


class DeviceLink(Link):
    def __init__(
        self, me: Identity, keyring: Keyring, topics: Topics, transport: Transport, store: ObjectStore
    ) -> None:
        super().__init__(me, keyring, topics, transport, UP)
        self.store = store
        self._up = topics.up(me.name)
        self._down = topics.down(me.name)
        self._offered: dict[bytes, Manifest] = {}
        self._sent: dict[bytes, bytearray] = {}
        self._inlined: tuple[int, str, bytes] | None = None  # the answer that was said last, whole
        self._fetch: Fetch | None = None
        self._waiting: Received | None = None
        self.news_at = 0.0  # when the coordinator last said something new, and not what a broker has kept
        self.least_round = 0  # the coordinator never goes back behind a round that we have answered

    @property
    def wake_at(self) -> float:
        return self._fetch.wake_at if self._fetch else float("inf")

    @property
    def coming(self) -> bytes:
        """Name of the broadcast that is being fetched, or nothing."""
        return self._fetch.object if self._fetch else b""

    @property
    def progress(self) -> tuple[int, int] | None:
        """Blocks here and blocks in all of the broadcast that is coming."""
        return (sum(self._fetch.partial.have), len(self._fetch.partial.have)) if self._fetch else None

    def send(self, message: Message) -> None:
        self.say(self._up, message, COORDINATOR)

    def send_update(self, update: Update, name: bytes) -> None:
        """Say an answer whose arrays are an object of the store: whole if small, else as an offer."""
        body = self.store.open(name)
        size = sum(n for _, n in body.parts)
        if size <= self.inline:
            attachment: Attachment = bytes(self.store.read(name, 0, size))
            said = (update.round, update.phase, name)
            fresh, self._inlined = said != self._inlined, said
            self.say(self._up, update, COORDINATOR, attachment, body.kinds, fresh)
            return
        if name not in self._offered:
            self._offered[name] = self.keyed(self.store.manifest(name, self.block))
            self._sent[name] = bytearray(len(self._offered[name].hashes))
        self.say(self._up, update, COORDINATOR, self._offered[name])

    def forget(self, name: bytes) -> None:
        """An answer has its receipt: serve its blocks no more."""
        self._offered.pop(name, None)
        self._sent.pop(name, None)

    def arrived(self, topic: str, frame: bytes, now: float) -> list[Received]:
        """What is complete after this frame. Raises Rejected where the frame was at fault."""
        if blocks.is_block(frame):
            return self._block(topic, frame, now)
        opened: list[tuple[Header, Message]] = []

        def take() -> Taken:
            before = self.heard_of(COORDINATOR)
            found = self.open(topic, frame)
            if self.heard_of(COORDINATOR) > before:
                self.news_at = now
            if found:
                opened.append(found[:2])
            return Taken(new=found is not None)

        self._counted(topic, frame, self.kind_of(frame), take)
        return [done for header, message in opened for done in self._message(header, message, now)]

    def wake(self, now: float) -> None:
        if self._fetch:
            self._fetch.wake(now, WINDOW)

    def stop_fetching(self) -> None:
        if fetch := self._fetch:
            self._no_more_of(fetch.manifest)
            fetch.partial.abandon(forget=True)  # another broadcast has taken its place
        self._fetch = self._waiting = None

    def _no_more_of(self, manifest: Manifest) -> None:
        """Blocks of it that are still on their way are repeats, not strangers."""
        self._complete_lately.append(manifest.wire_name[: codec.SHORT_HASH])
        self.transport.unsubscribe(self._topic_of(manifest))

    def _taken_over(self, fetch: Fetch, manifest: Manifest) -> bool:
        """Whether it is what is being fetched; a coordinator that has been away serves it under another key."""
        before = fetch.manifest
        if not fetch.rekeyed(manifest):
            return False
        if before != manifest:
            self._no_more_of(before)
            self.transport.subscribe(self._topic_of(manifest))
        return True

    def _topic_of(self, manifest: Manifest) -> str:
        return self.topics.broadcast(manifest.wire_name.hex())

    def _message(self, header: Header, message: Message, now: float) -> list[Received]:
        received = Received(header.sender, message, header.run, header.epoch)
        match message:
            case Want():
                self._serve(message)
                return []
            case Task(broadcast=Manifest() as manifest) if not self.store.has(manifest.object):
                return self._begin(received, manifest, now)
            case Task(broadcast=Manifest() as manifest):
                return [replace(received, object=manifest.object)]
        return [received]

    def _begin(self, received: Received, manifest: Manifest, now: float) -> list[Received]:
        if self._fetch and self._taken_over(self._fetch, manifest):
            self._waiting = received
            return []
        self.stop_fetching()
        self._fetch, self._waiting = Fetch(self.store.begin(manifest), self.send), received
        self.transport.subscribe(self._topic_of(manifest))
        if self._fetch.partial.complete:  # an earlier process had it all, and died before it had a name
            return self._here(self._fetch)
        self._fetch.fill(WINDOW, now)
        return []

    def _block(self, topic: str, frame: bytes, now: float) -> list[Received]:
        def take() -> Taken:
            prefix, index, data = blocks.unpack(frame)
            fetch = self._fetch
            if fetch is None or not fetch.goes_by(prefix):
                if prefix in self._complete_lately:
                    return Taken(new=False)
                raise Rejected(
                    Reason.UNKNOWN_OBJECT, f"a block of {prefix.hex()}, which is not being fetched"
                )
            if topic not in (self._down, self._topic_of(fetch.manifest)):
                raise Rejected(Reason.WRONG_TOPIC, f"a block on {topic}")
            return Taken(*fetch.take(index, data, now))

        fresh, fetch = self._counted(topic, frame, "block", take), self._fetch
        if not fresh or fetch is None:
            return []
        if not fetch.partial.complete:
            fetch.fill(WINDOW, now)
            return []
        return self._here(fetch)

    def _here(self, fetch: Fetch) -> list[Received]:
        """All blocks are here: give the object its name, and pass on the task that waits for it."""
        waiting, self._fetch, self._waiting = self._waiting, None, None
        self._no_more_of(fetch.manifest)
        fetch.partial.finish()
        return [replace(waiting, object=fetch.object)] if waiting else []

    def _serve(self, want: Want) -> None:
        manifest = self._offered.get(want.object)
        if manifest is None or not self.store.has(want.object):
            return  # asked by a coordinator that has forgotten its receipt; the next offer tells it anew
        sent = self._sent[want.object]
        for index in indices(want.ranges, len(manifest.hashes)):
            self.send_block(self._up, self.store, manifest, index, fresh=not sent[index])
            sent[index] = 1

    def _judge(self, message: Message, attachment: Attachment) -> None:
        if isinstance(message, Task) and message.round < self.least_round:
            raise Rejected(Reason.STALE_ROUND, f"round {message.round}, {self.least_round} has been answered")
        if isinstance(message, Task) and message.broadcast:
            self._demand(message.broadcast)

    def _check(self, header: Header, topic: str) -> None:
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
        if header.epoch < self.epoch:
            raise Rejected(
                Reason.STALE_EPOCH, f"coordinator epoch {header.epoch}, {self.epoch} has been heard"
            )
        self.run, self.epoch = header.run, header.epoch
