"""A coordinator of version 1.0 that is written from docs/protocol.md as it was before 1.1.

It sends given tasks to given devices, one after the other, and keeps their answers. It computes nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import queue
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import paho.mqtt.client as paho
from cryptography.exceptions import InvalidTag

from tests.hostile import wire
from tests.hostile.device import PATIENCE, Credentials, Task

BLOCK = 1 << 16
INLINE = 48 << 10


@dataclass
class Coming:
    """An answer whose blocks the coordinator has asked for."""

    header: wire.Header
    offer: list[Any]
    here: dict[int, bytes] = field(default_factory=dict)


class OldCoordinator:
    def __init__(
        self, who: Credentials, devices: Mapping[str, bytes], run: str, plan: bytes, asks: Sequence[Task],
        counts: bool = False,
    ) -> None:  # fmt: skip
        """Set up a coordinator; `devices` maps names to the public keys to which messages are sealed."""
        self.who, self.devices, self.run, self.plan, self.asks = who, devices, run, plan, list(asks)
        self.needs_counts = counts
        self.epoch, self.sequence = int(time.time()), 0
        self.prefix = f"protofleet/1/{who.federation}/"
        self.heard: list[tuple[wire.Header, dict[str, Any]]] = []
        self.answers: dict[tuple[int, str, str], bytes] = {}
        self._joined: set[str] = set()
        self._ended: paho.MQTTMessageInfo | None = None
        self._ask: Task | None = None
        self._offer: list[Any] = []
        self._asked: dict[int, set[str]] = {}  # The devices that have asked for each block of the broadcast.
        self._out: set[int] = set()
        self._coming: dict[str, Coming] = {}
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._client = self._paho()

    def conduct(self) -> None:
        """Run until each device has answered each task and the broker has the final state."""
        self._client.connect(self.who.host, self.who.port, keepalive=30)
        self._client.loop_start()
        deadline = time.monotonic() + 2 * PATIENCE
        while not self._ended:
            if time.monotonic() > deadline:
                said = [(h["sender"], h["kind"]) for h, _ in self.heard][-20:]
                raise AssertionError(
                    f"waited for answers to {self._ask and self._ask.place[:2]}; heard {said}"
                )
            with contextlib.suppress(queue.Empty, InvalidTag):
                self._take(*self._inbox.get(timeout=0.1))
        self._ended.wait_for_publish(PATIENCE)
        self._client.disconnect()
        self._client.loop_stop()

    # -- messages that it sends

    def _frame(self, kind: str, fields: Any, to: str = "*", round: int = 0, phase: str = "") -> bytes:
        self.sequence += 1
        header = {
            "major": 1, "minor": 0, "suite": int(to != "*"), "kind": kind, "federation": self.who.federation,
            "run": self.run, "epoch": self.epoch, "sender": "coordinator", "boot": self.epoch,
            "sequence": self.sequence, "recipient": to, "round": round, "phase": phase, "base": b"",
        }  # fmt: skip
        return wire.envelope(header, fields, self.who.sign, self.devices.get(to, b""))

    def _say(self, device: str, kind: str, fields: Any, round: int = 0, phase: str = "") -> None:
        self._publish(f"down/{device}", self._frame(kind, fields, device, round, phase))

    def _state(self, online: bool, reason: str = "") -> paho.MQTTMessageInfo:
        frame = self._frame("state", {"online": online, "reason": reason})
        return self._client.publish(f"{self.prefix}coord/state", frame, 1, True)

    def _publish(self, topic: str, frame: bytes) -> None:
        self._client.publish(self.prefix + topic, frame, qos=1)

    # -- messages that it receives

    def _take(self, topic: str, frame: bytes) -> None:
        if topic == "connected":
            self._state(True)
        elif topic.endswith("/coord/state"):
            return
        elif frame[:3] == wire.BLOCK:
            self._block(topic.rpartition("/")[2], frame)
        else:
            header, fields = wire.opened(frame, self.who.receive)
            self.heard.append((header, fields))
            self._told(header["sender"], header, fields)

    def _told(self, device: str, header: wire.Header, fields: Any) -> None:
        match header["kind"]:
            case "hello":
                self._greeted(device, fields)
            case "want" if self._offer and fields["object"] == self._offer[0]:
                self._serve(device, fields["ranges"], fields.get("again", False))
            case "update":
                self._update(device, header, fields["arrays"])

    def _greeted(self, device: str, fields: Any) -> None:
        right = fields.get("plan", b"") == hashlib.sha256(self.plan).digest()
        if not right or (self.needs_counts and not fields.get("counts")):
            self._say(device, "welcome", {"plan": self.plan})
            return
        self._joined.add(device)
        if self._ask is None:
            if self._joined == set(self.devices):
                self._next()
        elif (*self._ask.place[:2], device) not in self.answers:
            self._put(device)

    def _next(self) -> None:
        """Send the next task, or end the run."""
        if not self.asks:
            self._ask = None
            for device in self.devices:
                self._say(device, "finished", {})
            self._ended = self._state(False, "finished")
            return
        self._ask = self.asks.pop(0)
        self._offer = wire.manifest(self._ask.body, BLOCK) if self._ask.base else []
        self._asked, self._out = {}, set()
        for device in self.devices:
            self._put(device)

    def _put(self, device: str) -> None:
        assert self._ask is not None
        fields = {"broadcast": self._offer or None, "seconds": 60.0}
        self._say(device, "task", fields, self._ask.round, self._ask.phase)

    def _serve(self, device: str, ranges: list[int], again: bool) -> None:
        """Send a block once when every device has asked for it; send it afterwards to each device alone."""
        for first, last in zip(ranges[::2], ranges[1::2], strict=True):
            for i in range(first, last):
                self._asked.setdefault(i, set()).add(device)
                if again or i in self._out:
                    self._send(f"down/{device}", i)
                elif self._asked[i] == set(self.devices):
                    self._out.add(i)
                    self._send(f"bcast/{wire.wire_name(self._offer).hex()}", i)

    def _send(self, topic: str, i: int) -> None:
        assert self._ask is not None
        self._publish(topic, wire.block(self._offer, i, self._ask.body[i * BLOCK : (i + 1) * BLOCK]))

    def _update(self, device: str, header: wire.Header, arrays: Any) -> None:
        place = header["round"], header["phase"], device
        if place in self.answers or self._ask is None or place[:2] != self._ask.place[:2]:
            said = "accepted" if place in self.answers else "late"
            self._say(device, "receipt", {"verdict": said, "reason": ""}, *place[:2])
        elif isinstance(arrays, bytes):
            assert len(arrays) <= INLINE
            self._accept(header, arrays)
        elif device not in self._coming or self._coming[device].offer != arrays:
            self._coming[device] = Coming(header, arrays)
            self._want(device)

    def _want(self, device: str) -> None:
        offer, here = self._coming[device].offer, self._coming[device].here
        missing = [i for i in range(-(-offer[1] // offer[2])) if i not in here][:64]
        self._say(device, "want", {"object": offer[0], "ranges": [n for i in missing for n in (i, i + 1)]})

    def _block(self, device: str, frame: bytes) -> None:
        coming = self._coming.get(device)
        if coming is None or (found := wire.unblocked(coming.offer, frame)) is None:
            return
        coming.here[found[0]] = found[1]
        count = -(-coming.offer[1] // coming.offer[2])
        if len(coming.here) == count:
            del self._coming[device]
            self._accept(coming.header, b"".join(coming.here[i] for i in range(count)))
        elif len(coming.here) % 64 == 0:
            self._want(device)

    def _accept(self, header: wire.Header, body: bytes) -> None:
        assert self._ask is not None and header["base"] == self._ask.base
        place = self._ask.place[:2]
        self.answers[(*place, header["sender"])] = body
        self._say(header["sender"], "receipt", {"verdict": "accepted", "reason": ""}, *place)
        if all((*place, device) in self.answers for device in self.devices):
            self._next()

    # -- MQTT

    def _paho(self) -> paho.Client:
        client = paho.Client(
            paho.CallbackAPIVersion.VERSION2, f"{self.who.federation}.coordinator", protocol=paho.MQTTv5
        )
        context = ssl.create_default_context(cafile=self.who.ca)
        context.load_cert_chain(self.who.cert, self.who.key)
        client.tls_set_context(context)
        client.on_message = lambda c, u, message: self._inbox.put((message.topic, message.payload))
        client.on_connect = self._connected
        return client

    def _connected(self, client: paho.Client, *more: Any) -> None:
        client.subscribe([(self.prefix + topic, 1) for topic in ("dev/+/state", "up/+", "coord/state")])
        self._inbox.put(("connected", b""))
