"""A lying device: it has a real key, sends false messages, and keeps the messages that it receives.

It needs only a transport and calls no code of the edge client, so the same liar works in the simulation and over a
real broker.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field
from typing import Any

import msgpack
import numpy as np

from protofleet.protocol.security.envelope import Header, read_header, seal, unseal
from protofleet.protocol.security.keys import Keyring, Keys
from protofleet.protocol.transport.base import Arrived, Connected, Transport
from protofleet.protocol.wire import arrays, blocks
from protofleet.protocol.wire.messages import Manifest
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.protocol.wire.reasons import Rejected
from protofleet.protocol.wire.topics import Topics
from tests.support.small_federation import CLASSES

KEY = bytes(32)  # The liar has no secrets.


@dataclass
class Liar:
    """A device that calls `answers` with the place of each new task; without `answers` it never answers."""

    name: str
    keys: Keys
    keyring: Keyring
    topics: Topics
    transport: Transport | None = None
    answers: Any = None
    examples: int = 48
    hello: dict[str, Any] = field(default_factory=dict)  # Fields that replace those of an honest hello.
    heard: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    run: str = ""
    epoch: int = 0
    plan: bytes = b""
    sequence: int = 0
    # Object -> (body, block size in bytes).
    serves: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)
    asked: list[tuple[int, str, bytes]] = field(default_factory=list)
    mute: bool = False  # A liar with `mute` offers blocks and never sends one.

    def take(self, item: object, now: float = 0.0) -> None:
        if isinstance(item, Connected):
            self.greet()
        elif isinstance(item, Arrived) and not blocks.is_block(item.frame):
            try:
                header, payload = unseal(item.frame, self.keyring, self.keys.receive)
            except Rejected:
                return
            self.run, self.epoch = header.run, header.epoch
            self.told(header, msgpack.unpackb(payload))

    def told(self, header: Header, fields: dict[str, Any]) -> None:
        self.heard.append((header.kind, fields))
        if header.kind == "welcome":
            self.plan = hashlib.sha256(fields["plan"]).digest()
            self.greet()
        elif header.kind == "state" and fields["online"]:
            self.greet()
        elif header.kind == "task" and self.answers:
            base = fields["broadcast"][0] if fields["broadcast"] else b""
            place = header.round, header.phase, base
            if place not in self.asked:
                self.asked.append(place)
                self.answers(self, place)
        elif header.kind == "want" and not self.mute and fields["object"] in self.serves:
            self.serve(fields["object"], fields["ranges"])

    def greet(self) -> None:
        honest = {"classes": CLASSES, "examples": self.examples, "protocol": [1, 1], "plan": self.plan}
        self.say("hello", {**honest, **self.hello})

    def frame(self, kind: str, fields: Any, round=0, phase="", base=b"", **header: Any) -> bytes:
        """Return a signed envelope; `header` replaces any fields of an honest header."""
        self.sequence += 1
        honest = {
            "major": 1, "minor": 0, "suite": int(kind != "state"), "kind": kind, "federation": self.topics.federation,
            "run": self.run, "epoch": self.epoch, "sender": self.name, "boot": 1, "sequence": self.sequence,
            "recipient": COORDINATOR, "round": round, "phase": phase, "base": base,
        }  # fmt: skip
        payload = fields if isinstance(fields, bytes) else msgpack.packb(fields)
        return seal(
            Header(**{**honest, **header}), payload, self.keys.sign, self.keyring[COORDINATOR].receive
        )

    def say(self, kind: str, fields: Any, *place: Any, **header: Any) -> None:
        self.publish(self.frame(kind, fields, *place, **header))

    def publish(self, frame: bytes, topic: str = "") -> None:
        self.transport.publish(topic or self.topics.up(self.name), frame)

    def update(self, place: tuple[int, str, bytes], body: Any, **fields: Any) -> None:
        """Send an update; a dict of arrays is encoded, bytes and manifests are sent unchanged."""
        if isinstance(body, dict):
            body = encoded(body)
        self.say("update", {"examples": 1, "metrics": {}, "arrays": body, **fields}, *place)

    def offer(self, body: bytes, block: int = 4096, parts: list[list[Any]] | None = None) -> list[Any]:
        """Return a manifest of a body, and keep the body so that its blocks are sent on request."""
        name = hashlib.sha256(body).digest()
        self.serves[name] = (body, block)
        hashes = b"".join(
            hashlib.sha256(body[i : i + block]).digest()[:16] for i in range(0, len(body), block)
        )
        return [name, len(body), block, hashes, parts or parts_of(body), KEY]

    def serve(self, name: bytes, ranges: list[int]) -> None:
        body, size = self.serves[name]
        for start, stop in zip(ranges[::2], ranges[1::2]):
            for i in range(start, stop):
                manifest = Manifest(name, len(body), size, (), (), KEY)
                self.publish(blocks.pack(manifest, i, body[i * size : (i + 1) * size]))

    def verdicts(self) -> list[tuple[str, str]]:
        return [(f["verdict"], f["reason"]) for kind, f in self.heard if kind == "receipt"]


def encoded(named: dict[str, np.ndarray]) -> bytes:
    return b"".join(arrays.encode(named))


def parts_of(body: bytes) -> list[list[Any]]:
    found = arrays.Body(lambda start, stop: body[start:stop], len(body))
    return [list(part) for part in found.layout]


def with_table(table: list[Any], raw: bytes = b"") -> bytes:
    packed = msgpack.packb(table)
    return struct.pack("<I", len(packed)) + packed + raw


def add_liar(run, name: str = "liar", **more: Any) -> Liar:
    """Enrol a liar in a simulated run, connect it and return it."""
    keys = Keys.new()
    run.keyring[name] = keys.public
    liar = Liar(name, keys, run.keyring, run.topics, **more)
    liar.transport = run.broker.connect(name, liar.take, set(run.topics.device_subscriptions(name)))
    return liar


def kind_of(frame: bytes) -> str:
    return "block" if blocks.is_block(frame) else read_header(frame)[0].kind
