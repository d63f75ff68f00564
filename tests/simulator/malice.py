"""The frames that a hostile broker and a hostile enrolled device add.

The broker has no key. It alters passing frames, repeats kept frames on any topic, and makes frames in the
names of others. The device has a key of its own. It signs messages that others have sealed, sends unsealed
messages where the protocol forbids it, and gives its messages any numbers.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import msgpack

from protofleet.protocol.security.envelope import (
    DOMAIN,
    ENVELOPE,
    MAX_NUMBER,
    OPEN,
    SEALED,
    SIGNATURE,
    Header,
    read_header,
    seal,
)
from protofleet.protocol.security.keys import Keys
from protofleet.protocol.wire import codec
from protofleet.protocol.wire.blocks import is_block
from protofleet.protocol.wire.messages import BlockRequest, Bye, Finished
from protofleet.protocol.wire.names import COORDINATOR
from protofleet.protocol.wire.topics import Topics
from tests.simulator.broker import Message

STRANGER = "d7"  # An enrolled device that is part of no scenario.
DEEDS = ("alter", "replay", "forge", "sign_anothers", "speak_openly", "miscount")
KEPT = 400  # The number of kept frames.
DISTANCES = (0, 1, 2, 1022, 1023, 1024, 1025, 5000)  # Around the width of a window, and far above it.
NUMBERS = ("epoch", "boot", "sequence", "round")


@dataclass
class Malice:
    dice: random.Random
    keys: Mapping[str, Keys]
    topics: Topics
    sealed: bool
    deeds: tuple[str, ...]
    rate: float
    says: Callable[[str, bytes], None]  # Gets the messages that the stranger may send.
    _kept: list[Message] = field(default_factory=list)
    _topics: dict[str, None] = field(default_factory=dict)
    _boot: int = 1
    _number: int = 0

    def meddle(self, topic: str, frame: bytes) -> list[Message]:
        """Return the messages that replace a frame."""
        self._keep(topic, frame)
        if self.dice.random() >= self.rate:
            return [(topic, frame)]
        deed = self.dice.choice(self.deeds)
        if deed == "replay":
            return [(topic, frame), *self._replayed()]
        if deed == "alter":
            return [(topic, self._altered(frame)), *([(topic, frame)] * self.dice.randint(0, 1))]
        if is_block(frame):
            return [(topic, frame)]
        made = {"forge": self._forged, "sign_anothers": self._signed_anothers, "speak_openly": self._openly}
        other = made.get(deed, self._miscounted)
        return [(topic, frame), *other(topic, *_taken_apart(frame))]

    def _keep(self, topic: str, frame: bytes) -> None:
        self._topics[topic] = None
        if len(self._kept) < KEPT:
            self._kept.append((topic, frame))
        else:
            self._kept[self.dice.randrange(KEPT)] = (topic, frame)

    def _replayed(self) -> list[Message]:
        """Return a kept frame of any time, sometimes on a topic on which it was never published."""
        topic, frame = self.dice.choice(self._kept)
        if self.dice.random() < 0.3:
            topic = self.dice.choice(list(self._topics))
        return [(topic, frame)] * self.dice.choice((1, 1, 3))

    def _altered(self, frame: bytes) -> bytes:
        """Return the frame with one changed bit, or with a changed number in its header."""
        if is_block(frame) or self.dice.random() < 0.5:
            at = self.dice.randrange(len(frame))
            return frame[:at] + bytes([frame[at] ^ 1 << self.dice.randrange(8)]) + frame[at + 1 :]
        header, head, rest = _taken_apart(frame)
        name = self.dice.choice(NUMBERS)
        number = min(MAX_NUMBER, getattr(header, name) + self.dice.choice((1, 1, 100)))
        return _head(replace(header, **{name: number})) + rest

    def _forged(self, topic: str, header: Header, head: bytes, rest: bytes) -> list[Message]:
        """Forge a frame in the name of the last sender, with another party's signature or a random one."""
        if header.recipient not in self.keys:
            return []
        message = Finished(1) if header.sender == COORDINATOR else Bye("forged")
        place = codec.task_id_of(message)
        forged = replace(
            header, kind=codec.KINDS[type(message)], sequence=header.sequence + self.dice.randint(1, 9),
            round=place.round, phase=place.phase, base=place.base,
        )  # fmt: skip
        frame = self._sealed(forged, codec.encode(message))
        if self.dice.random() < 0.5:
            frame = frame[:-SIGNATURE] + self.dice.randbytes(SIGNATURE)
        return [(topic, frame)]

    def _signed_anothers(self, topic: str, header: Header, head: bytes, rest: bytes) -> list[Message]:
        """Sign a message that another party has sealed; the device cannot read it."""
        if header.suite != SEALED or header.recipient != COORDINATOR:
            return []
        body = _head(self._own(header)) + rest[:-SIGNATURE]
        signature = self.keys[STRANGER].sign.sign(DOMAIN + body)
        return [(self.topics.up(STRANGER), body + signature)]

    def _openly(self, topic: str, header: Header, head: bytes, rest: bytes) -> list[Message]:
        if header.suite != SEALED:
            return []
        plain = replace(self._own(header), suite=OPEN, kind="bye", recipient=COORDINATOR)
        return [(self.topics.up(STRANGER), self._sealed(plain, codec.encode(Bye("in clear"))))]

    def _miscounted(self, topic: str, header: Header, head: bytes, rest: bytes) -> list[Message]:
        """Send a number, a number far above it, and the first again; the device may choose them freely."""
        leap = self.dice.choice(DISTANCES)
        if self.dice.random() < 0.1:
            leap = MAX_NUMBER - self._number - 10  # After that a new boot begins.
        said = [self._want(header), self._want(header, leap)] if leap else [self._want(header)]
        if self._number > MAX_NUMBER // 2:
            self._boot, self._number = self._boot + 1, 0
        elif self.dice.random() < 0.2:
            self._boot, self._number = self._boot + 1, 0
            said.append(self._want(header))
        return [*said, said[0]]

    def _want(self, header: Header, leap: int = 1) -> Message:
        """Return a request for blocks of an object that does not exist, so that no party misses an answer."""
        message = BlockRequest(bytes(codec.HASH), ((0, 1),))
        suite = SEALED if self.sealed else OPEN
        own = replace(self._own(header, leap), suite=suite, kind="want", recipient=COORDINATOR)
        own = replace(own, round=0, phase="", base=b"")
        topic, frame = self.topics.up(STRANGER), self._sealed(own, codec.encode(message))
        self.says(topic, frame)
        return topic, frame

    def _own(self, header: Header, leap: int = 1) -> Header:
        self._number += leap
        return replace(header, sender=STRANGER, boot=self._boot, sequence=self._number)

    def _sealed(self, header: Header, payload: bytes) -> bytes:
        receive = self.keys[header.recipient].public.receive if header.suite == SEALED else b""
        return seal(header, payload, self.keys[STRANGER].sign, receive)


def _taken_apart(frame: bytes) -> tuple[Header, bytes, bytes]:
    """Return the header, the bytes of the header, and the bytes after it."""
    header, start = read_header(frame)
    return header, frame[:start], frame[start:]


def _head(header: Header) -> bytes:
    """Return the bytes of a header, as docs/protocol.md defines them."""
    packed = msgpack.packb([getattr(header, name) for name in Header.__slots__])
    return ENVELOPE + struct.pack("<H", len(packed)) + packed
