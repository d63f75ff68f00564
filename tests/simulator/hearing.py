"""A check of each frame that a party accepts, against a plain memory of all messages ever sent.

It sees the frames at the line.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgpack

from protofleet.protocol.link.base import Link
from protofleet.protocol.link.clocks import Clock as Wall
from protofleet.protocol.link.coordinator import CoordinatorLink
from protofleet.protocol.link.device import DeviceLink
from protofleet.protocol.security.envelope import SIGNATURE, Header, read_header
from protofleet.protocol.wire.blocks import is_block
from protofleet.protocol.wire.codec import Attachment
from protofleet.protocol.wire.messages import Message
from protofleet.protocol.wire.names import EVERYBODY
from tests.simulator.clock import Clock
from tests.simulator.due import Due
from tests.simulator.promises import demand

Place = tuple[int, int]  # Boot and sequence number.
Found = tuple[Header, Message, Attachment] | None
Either = TypeVar("Either", bound=Link)
WIDTH = 1024  # The width of the window in docs/protocol.md; a number that is further behind counts as seen.
NOTHING: Place = (-1, -1)


@dataclass
class Said:
    """The messages of the whole federation, through all lives of its parties."""

    sealed: bool
    clock: Clock
    where: dict[bytes, str] = field(default_factory=dict)  # Envelope -> topic that its sender used.
    coordinators: dict[int, Ear] = field(default_factory=dict)  # Coordinators by epoch.
    owes: dict[int, Due] = field(default_factory=dict)  # Debts of coordinators by epoch.
    # By device, the place up to which no later coordinator may accept a frame again.
    marks: dict[str, Place] = field(default_factory=dict)

    def says(self, topic: str, frame: bytes) -> None:
        if is_block(frame):
            return
        self.where[frame] = topic
        if self.sealed:
            header, start = read_header(frame)
            readable = header.recipient != EVERYBODY and opens(frame[start:-SIGNATURE])
            demand(not readable, f"I12: everybody can read the {header.kind} of {header.sender} on {topic}")

    def heard_of(self, epoch: int, device: str) -> Place:
        """Return the place up to which a coordinator has heard a device."""
        return self.coordinators[epoch].newest[device]

    def accepted(self, device: str, heard: Place) -> None:
        """Note that an answer has become durable, and with it the place of its device at that time."""
        self.marks[device] = heard

    def asks_no_more(self, epoch: int) -> None:
        if epoch in self.owes:
            self.owes[epoch].asks_no_more()


def opens(payload: bytes) -> bool:
    """Return whether a payload is readable without a key.

    A sealed payload begins with 32 random bytes.
    """
    try:
        return isinstance(msgpack.unpackb(payload), dict)
    except ValueError:
        return False


@dataclass
class Ear:
    """The frames that one process has accepted."""

    said: Said
    owner: str
    behind: dict[str, Place] = field(default_factory=dict)  # Places that earlier processes acted on.
    told: Mapping[str, Place] = field(default_factory=dict)  # Places that earlier processes stored.
    newest: dict[str, Place] = field(default_factory=lambda: defaultdict(lambda: NOTHING))
    _taken: set[tuple[str, Place]] = field(default_factory=set)

    def took(self, topic: str, frame: bytes, header: Header) -> None:
        sender, place, newest = header.sender, (header.boot, header.sequence), self.newest[header.sender]
        what = f"I11: {self.owner} took a {header.kind} of {sender}, boot {place[0]}, number {place[1]},"
        demand(self.said.where.get(frame) == topic, f"{what} which nobody has said on {topic}")
        demand(place[0] >= newest[0], f"{what} after it had heard boot {newest[0]}")
        if header.kind != "state":  # A will is sealed once, and comes at every death of the connection.
            demand((sender, place) not in self._taken, f"{what} twice")
            demand(place > self.behind.get(sender, NOTHING), f"{what} which an earlier process had taken")
            demand(place[0] > newest[0] or place[1] > newest[1] - WIDTH, f"{what} after number {newest[1]}")
        self._taken.add((sender, place))
        self.newest[sender] = max(place, newest)

    def lets_go(self, header: Header, clock: Wall) -> None:
        """Forget an epoch that is far ahead of the device's clock now.

        The device took it over while its clock was too wrong to judge others.
        """
        held = self.newest[header.sender][0]
        if header.boot < held and clock.ahead(held) and not clock.ahead(header.boot):
            self.newest[header.sender] = NOTHING

    def left_out(self, header: Header) -> None:
        """Check a frame that the process dropped as a duplicate."""
        sender, place, newest = header.sender, (header.boot, header.sequence), self.newest[header.sender]
        seen = (sender, place) in self._taken or place <= self.told.get(sender, NOTHING)
        too_old = place[0] == newest[0] and place[1] <= newest[1] - WIDTH
        words = f"I11: {self.owner} left out a {header.kind} of {sender}, boot {place[0]}, number {place[1]}"
        demand(seen or too_old, f"{words}: it had never heard it")


def observed_link(base: type[Either], said: Said) -> type[Either]:
    class Observed(base):  # type: ignore[valid-type,misc]
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.ear, self.due = Ear(said, self.me.name), Due(self.me.name)
            if isinstance(self, CoordinatorLink):
                self.due.epoch = self.me.boot
                said.coordinators[self.me.boot], said.owes[self.me.boot] = self.ear, self.due

        def remember(self, heard: Mapping[str, tuple[int, int, str]]) -> None:
            super().remember(heard)
            # Each run of a coordinator stores the places that it has heard.
            told = {sender: (boot, newest) for sender, (boot, newest, _) in heard.items()}
            self.ear.told = {**self.ear.told, **told}
            if isinstance(self, CoordinatorLink):
                self.ear.behind = dict(said.marks)

        def open(self, topic: str, frame: bytes) -> Found:
            found: Found = super().open(topic, frame)
            if found:
                if isinstance(self, DeviceLink):
                    self.ear.lets_go(found[0], self.clock)
                self.ear.took(topic, frame, found[0])
                self.due.heard(found[0].sender, found[1], found[0].boot, said.clock.now)
            else:
                self.ear.left_out(read_header(frame)[0])
            return found

        def next_frame(
            self, message: Message, run: str, names: tuple[str, ...], recipient: str = EVERYBODY, *rest: Any
        ) -> bytes:  # fmt: skip
            frame: bytes = super().next_frame(message, run, names, recipient, *rest)
            self.due.said(recipient, message, said.clock.now)
            return frame

    return Observed
