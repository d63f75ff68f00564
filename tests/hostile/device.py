"""A device that is written from the protocol alone, honest by default (a raw device).

It can also send wrong fields, orders and signatures, and repeats. It is a separate client over paho and the
documented wire. Its honest script returns the arrays of the task. This is a valid answer for each method
whose answer has the shapes of its task.
"""

from __future__ import annotations

import contextlib
import hashlib
import queue
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import paho.mqtt.client as paho
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.hostile import wire

PATIENCE = 60.0  # Seconds that a loaded machine may take.
SAID_AGAIN = 2.0  # Seconds after which the device repeats a message that got no response.


@dataclass(frozen=True)
class Credentials:
    """The keys and certificates of an enrolled device, and the facts that it needs about its coordinator."""

    federation: str
    name: str
    sign: Ed25519PrivateKey
    receive: X25519PrivateKey
    coordinator: bytes  # The public key of the coordinator, to which the device seals messages.
    host: str
    port: int
    ca: str
    cert: str
    key: str


@dataclass(frozen=True)
class Task:
    round: int
    phase: str
    base: bytes
    body: bytes  # The body of the broadcast.

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        return wire.arrays_in(self.body)

    @property
    def place(self) -> tuple[int, str, bytes]:
        return self.round, self.phase, self.base


@dataclass(frozen=True)
class Answer:
    """One answer to a task.

    `body` may be arrays, bytes or a manifest. `fields` and `header` replace the honest entries of the
    message.
    """

    body: Any = wire.EMPTY
    examples: Any = 10
    metrics: Any = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    header: Mapping[str, Any] = field(default_factory=dict)


Work = Callable[[Task], "Answer | None"]  # With None the device sends no answer.


def honest(task: Task) -> Answer:
    if task.phase == "evaluate":
        return Answer(metrics={"accuracy.test.global": 0.5, "loss.test.global": 1.0, "samples.test": 10})
    return Answer(task.body)


@dataclass
class Heard:
    topic: str
    kind: str
    header: wire.Header
    fields: Any
    at: float


class Device:
    """A device on its own thread, from `start` to `stop`; `heard` has the received messages, newest last."""

    def __init__(
        self, who: Credentials, work: Work = honest, *, classes: int = 3, boot: int = 0, says_hello: bool = True,
        hello: Mapping[str, Any] | None = None, again: float = SAID_AGAIN, clean: bool = True,
    ) -> None:  # fmt: skip
        self.who, self.name, self.work, self.classes = who, who.name, work, classes
        self.hello_fields, self.says_hello, self.again = dict(hello or {}), says_hello, again
        self.boot = boot or int(time.time())
        self.prefix = f"protofleet/1/{who.federation}/"
        self.run, self.epoch, self.sequence, self.plan = "", 0, 0, b""
        self.heard: list[Heard] = []
        self.answered: dict[tuple[int, str, bytes], Answer] = {}  # Each task and the answer to it.
        self.serves: dict[bytes, tuple[bytes, list[Any]]] = {}  # Object -> body and manifest.
        self.finished = threading.Event()
        self.closed: list[str] = []  # The reasons for which connections ended.
        self._news, self._counting = threading.Condition(), threading.Lock()
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._objects: dict[bytes, bytes] = {}
        self._coming: tuple[list[Any], dict[int, bytes]] | None = None
        self._task: tuple[int, str] | None = None
        self._open: tuple[int, str, bytes] | None = None  # The task whose answer has no receipt yet.
        self._said_at = 0.0  # The time of the last answer or of the last repeated message.
        self._client = self._paho(clean)
        self._thread = threading.Thread(target=self._live, name=f"raw {self.name}", daemon=True)

    # -- start and end

    def start(self) -> Device:
        self._thread.start()
        self._client.connect_async(self.who.host, self.who.port, keepalive=30)
        self._client.loop_start()
        return self

    def stop(self) -> None:
        """End the device and close its connection in order, so that the broker publishes no will."""
        self._inbox.put(None)
        if self._thread.is_alive():
            self._thread.join(PATIENCE)
        self._client.disconnect()
        self._client.loop_stop()

    def vanish(self) -> None:
        """Break the connection, so that the broker publishes the will.

        paho connects again without help.
        """
        with contextlib.suppress(OSError, AttributeError):
            self._client.socket().shutdown(2)  # type: ignore[union-attr]  # A connected client has a socket.

    def die(self) -> None:
        """Break the connection permanently: the broker publishes the will, and the device does not return."""
        self._inbox.put(None)
        self._client.on_disconnect = None
        self._client.reconnect_delay_set(3600, 3600)
        self.vanish()

    def __enter__(self) -> Device:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()

    # -- messages that it sends

    def header(self, kind: str, place: tuple[int, str, bytes] = (0, "", b""), **other: Any) -> wire.Header:
        with self._counting:  # Tests send messages in its name while its own thread sends others.
            self.sequence += 1
            sequence = self.sequence
        round, phase, base = place
        return {
            "major": 1, "minor": 0, "suite": int(kind != "state"), "kind": kind, "federation": self.who.federation,
            "run": self.run, "epoch": self.epoch, "sender": self.name, "boot": self.boot, "sequence": sequence,
            "recipient": "*" if kind == "state" else "coordinator", "round": round, "phase": phase, "base": base,
            **other,
        }  # fmt: skip

    def frame(
        self, kind: str, fields: Any, place: tuple[int, str, bytes] = (0, "", b""), **other: Any
    ) -> bytes:
        header = self.header(kind, place, **other)
        receive = self.who.coordinator if header["suite"] == 1 else b""
        return wire.envelope(header, fields, self.who.sign, receive)

    def say(self, kind: str, fields: Any, place: tuple[int, str, bytes] = (0, "", b""), **other: Any) -> None:
        topic = f"dev/{self.name}/state" if kind == "state" else f"up/{self.name}"
        self.publish(self.frame(kind, fields, place, **other), topic, retain=kind == "state")

    def publish(self, frame: bytes, topic: str = "", retain: bool = False) -> None:
        """Publish a frame on a topic of this federation, by default on the topic of this device."""
        self._client.publish(self.prefix + (topic or f"up/{self.name}"), frame, qos=1, retain=retain)

    def greet(self, **other: Any) -> None:
        fields = {"classes": self.classes, "examples": 10, "protocol": [1, 1], "plan": self.plan}
        self.say("hello", {**fields, **self.hello_fields, **other})

    def answer(self, place: tuple[int, str, bytes], answer: Answer) -> None:
        self._said_at = time.monotonic()
        data = wire.body(answer.body) if isinstance(answer.body, Mapping) else answer.body
        fields = {"examples": answer.examples, "metrics": answer.metrics, "arrays": data, **answer.fields}
        self.say("update", fields, place, **answer.header)

    def offer(self, data: bytes, size: int = 4096) -> list[Any]:
        """Return a manifest of a body, and serve the body when the coordinator asks for it."""
        made = wire.manifest(data, size)
        self.serves[made[0]] = (data, made)
        return made

    # -- waiting for messages

    def wait(self, kind: str, check: Callable[[Heard], bool] = lambda h: True, since: int = 0) -> Heard:
        """Return the first message of a kind, from number `since` on, that passes the check."""
        found = self.wait_until(
            lambda: next((h for h in self.heard[since:] if h.kind == kind and check(h)), None), f"a {kind}"
        )
        assert isinstance(found, Heard)
        return found

    def wait_until(self, check: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
        """Wait until the check is true: test it after each received message, and ten times a second."""
        deadline = time.monotonic() + seconds
        with self._news:
            while not (found := check()):
                if time.monotonic() > deadline:
                    kinds = [h.kind for h in self.heard][-20:]
                    raise AssertionError(
                        f"{self.name} waited {seconds} s for {what}; heard {kinds}, {self.closed}"
                    )
                self._news.wait(0.1)
        return found

    def verdicts(self) -> list[tuple[str, str]]:
        return [(h.fields["verdict"], h.fields["reason"]) for h in self.heard if h.kind == "receipt"]

    # -- the honest script

    def _live(self) -> None:
        while True:
            try:
                item = self._inbox.get(timeout=self.again / 4)
            except queue.Empty:
                item = "tick"
            if item is None:
                return
            if (
                item == "tick"
                and time.monotonic() - self._said_at > self.again
                and not self.finished.is_set()
            ):
                self._said_at = time.monotonic()
                self._say_again()
            elif item == "connected" and self.says_hello:
                self.say("state", {"online": True})
                self.greet()
            elif isinstance(item, paho.MQTTMessage):
                self._take(item.topic, item.payload)
                with self._news:
                    self._news.notify_all()

    def _say_again(self) -> None:
        if self._open:
            self.answer(self._open, self.answered[self._open])
        elif self._coming:
            self._want(True)
        elif self.says_hello and self._client.is_connected():
            self.greet()

    def _take(self, topic: str, frame: bytes) -> None:
        if frame[:3] == wire.BLOCK:
            self._block(frame)
            return
        with contextlib.suppress(InvalidTag, ValueError):
            header, fields = wire.opened(frame, self.who.receive)
            self.run, self.epoch = header["run"], max(self.epoch, header["epoch"])
            self.heard.append(Heard(topic, header["kind"], header, fields, time.monotonic()))
            self._told(header, fields)

    def _told(self, header: wire.Header, fields: Any) -> None:
        match header["kind"]:
            case "welcome":
                self.plan = hashlib.sha256(fields["plan"]).digest()
                self.greet()
            case "state" if fields["online"] and fields.get("reason") != "here" and self.says_hello:
                self.greet()
            case "task":
                self._asked(header["round"], header["phase"], fields["broadcast"])
            case "want":
                self._serve(fields["object"], fields["ranges"])
            case "receipt":
                if self._open and self._open[:2] == (header["round"], header["phase"]):
                    self._open = None
            case "finished":
                self.finished.set()

    def _asked(self, round: int, phase: str, offer: list[Any] | None) -> None:
        self._task = (round, phase)
        if offer is None or offer[0] in self._objects:
            self._do(
                Task(
                    round, phase, offer[0] if offer else b"", self._objects[offer[0]] if offer else wire.EMPTY
                )
            )
        elif self._coming is None or wire.wire_name(self._coming[0]) != wire.wire_name(offer):
            self._coming = (offer, {})
            self._client.subscribe(f"{self.prefix}bcast/{wire.wire_name(offer).hex()}", qos=1)
            self._want(False)

    def _want(self, again: bool) -> None:
        assert self._coming is not None
        offer, here = self._coming
        missing = [i for i in range(-(-offer[1] // offer[2])) if i not in here][:64]
        ranges = [n for i in missing for n in (i, i + 1)]
        self.say("want", {"object": offer[0], "ranges": ranges, "again": again})

    def _block(self, frame: bytes) -> None:
        if self._coming is None or (found := wire.unblocked(self._coming[0], frame)) is None:
            return
        offer, here = self._coming
        here[found[0]] = found[1]
        count = -(-offer[1] // offer[2])
        if len(here) < count:
            if len(here) % 64 == 0:
                self._want(False)
            return
        self._objects = {
            offer[0]: b"".join(here[i] for i in range(count))
        }  # It keeps only the newest broadcast.
        self._coming = None
        assert self._task is not None
        self._do(Task(*self._task, offer[0], self._objects[offer[0]]))

    def _do(self, task: Task) -> None:
        """Work on a task and send the answer; give the same answer to the same task."""
        if task.place not in self.answered:
            made = self.work(task)
            if made is None:
                return
            self.answered[task.place] = made
        self._open = task.place
        self.answer(task.place, self.answered[task.place])

    def _serve(self, name: bytes, ranges: list[int]) -> None:
        if name not in self.serves:
            return
        data, offer = self.serves[name]
        for first, last in zip(ranges[::2], ranges[1::2], strict=True):
            for i in range(first, last):
                self.publish(wire.block(offer, i, data[i * offer[2] : (i + 1) * offer[2]]))

    # -- MQTT

    def _paho(self, clean: bool) -> paho.Client:
        who = self.who
        client = paho.Client(
            paho.CallbackAPIVersion.VERSION2,
            f"{who.federation}.{self.name}",
            protocol=paho.MQTTProtocolVersion.MQTTv5,
        )
        context = ssl.create_default_context(cafile=who.ca)
        context.load_cert_chain(who.cert, who.key)
        client.tls_set_context(context)
        client.reconnect_delay_set(1, 2)
        will = wire.envelope(
            {**self.header("state"), "sequence": 0}, {"online": False, "reason": "lost"}, who.sign
        )
        self.sequence = 0
        client.will_set(f"{self.prefix}dev/{self.name}/state", will, qos=1, retain=True)
        client.on_connect = self._connected
        client.on_message = lambda c, u, message: self._inbox.put(message)
        client.on_disconnect = lambda c, u, f, reason, p: self.closed.append(str(reason))
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = 600
        client.connect_async(who.host, who.port, clean_start=clean, properties=properties)
        return client

    def _connected(self, client: paho.Client, data: Any, flags: Any, reason: Any, properties: Any) -> None:
        if reason.is_failure:
            self.closed.append(str(reason))
            return
        client.subscribe(
            [(self.prefix + topic, 1) for topic in ("coord/state", "round", f"down/{self.name}")]
        )
        self._inbox.put("connected")
