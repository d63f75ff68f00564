"""The messages of the wire: everything that one side can send to the other.

A message is a few scalars, and where it carries tensors, `arrays`: a read-only mapping from names to
NumPy arrays that may live on disk until somebody reads them. No field belongs to one method.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.generic]
Arrays: TypeAlias = Mapping[str, Array]

NOTHING: Arrays = {}
WIRE_NAME: Final = b"protofleet/1 object\x00"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an object is made of: enough to fetch it in blocks and to check each of them.

    With a key, its blocks travel sealed, under a name that tells nothing about their content. A key is for one
    division of one object into blocks and is never used for another: a block's nonce is its number.
    """

    object: bytes  # SHA-256 of the whole
    size: int
    block: int  # bytes in every block but the last
    hashes: tuple[bytes, ...]  # per block: the first 16 bytes of its SHA-256
    # (kind, bytes) in order, so that every byte has a kind; (): the body says.
    parts: tuple[tuple[str, int], ...]
    key: bytes = b""  # of its blocks; empty: they travel as they are

    @property
    def wire_name(self) -> bytes:
        """Its name in topics and blocks."""
        return hashlib.sha256(WIRE_NAME + self.key + self.object).digest() if self.key else self.object


NO_ANSWER: Final = "none"


@dataclass(frozen=True, slots=True)
class IndirectManifest:
    """An object whose manifest fits no packet: the manifest is an object too, and this says how to get that."""

    object: bytes
    size: int
    key: bytes  # of the object's blocks
    manifest: Manifest  # of the object that holds the manifest, without the key


Offer: TypeAlias = Manifest | IndirectManifest


def objects_of(offer: Offer) -> set[bytes]:
    """All objects that are served for it."""
    return {offer.object, offer.manifest.object} if isinstance(offer, IndirectManifest) else {offer.object}


@dataclass(frozen=True, slots=True)
class Hello:
    """A device is ready for work. Sent after every connect."""

    device: str
    classes: int
    examples: int
    domain: str = ""
    software: str = ""
    protocol: tuple[int, int] = (1, 1)  # lowest and highest major version it speaks
    plan: bytes = b""  # SHA-256 of the plan it has taken on; empty: none yet
    counts: tuple[int, ...] = ()  # training samples per class, only where the plan's method needs them
    holds: tuple[bytes, ...] = ()  # broadcasts it has in full
    round: int = 0  # of its last answer in this run
    phase: str = ""  # of the same; NO_ANSWER: it has none; empty: it does not say
    base: bytes = b""  # what that answer was computed from
    can: tuple[str, ...] = ()  # forms of messages that were added later and that it understands
    names: tuple[str, ...] = ()  # of its classes; only in the first hello of a connection
    names_hash: bytes = b""  # of them, in all that follow


@dataclass(frozen=True, slots=True)
class About:
    """Information about a run that changes no computation: what does is in the plan, whose bytes are hashed."""

    can: tuple[str, ...] = ()  # forms of messages that were added later and that this coordinator understands
    uses: tuple[str, ...] = ()  # those without which a device cannot take part in this run
    names: tuple[str, ...] = ()  # of the classes
    embedding: int = 0  # width of the network's embedding: what prototypes are made of
    metrics: tuple[str, ...] = ()  # an update may name each by its place here
    counts: bool = False  # whether the method needs a device's `counts`, only for one that asks to be told


@dataclass(frozen=True, slots=True)
class Welcome:
    """What this run is about: method, settings, network, seed. A device joins it or sends a Bye."""

    plan: bytes  # JSON
    about: About = About()


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """What an answer must hold under one name, as the coordinator judges it.

    A name that ends with `.*` stands for all arrays of the broadcast that begin so and have no row of their own.
    """

    name: str
    dtype: str | None  # None: as in the broadcast
    # None: as in the broadcast; a name is a free length, the same for equal names.
    shape: tuple[int | str, ...] | None
    most: int | None  # the largest length that is free
    low: float | None
    high: float | None
    norm: float | None  # the largest Euclidean one
    finite: bool
    rules: tuple[str, ...] = ()  # what else; docs/protocol.md lists them


@dataclass(frozen=True, slots=True)
class Task:
    """Work for one device in one phase of one round. The tensors come as a broadcast."""

    round: int
    phase: str
    broadcast: Offer | None = None
    seconds: float = 0.0  # until the deadline; a hint, the coordinator decides
    wants: tuple[ArraySpec, ...] = ()  # what the answer must hold, only for a device that asks to be told
    follows: bool = False  # the broadcast is of one block, which comes without being asked for
    credit: int = 0  # blocks of the answer that are asked for in advance, if it has no more


@dataclass(frozen=True, slots=True)
class Update:
    """A device's answer to a Task."""

    device: str
    round: int
    phase: str
    examples: int
    base: bytes = b""  # SHA-256 of the broadcast it was computed from
    arrays: Arrays = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    follows: bool = False  # the arrays are of one block, which comes without being asked for


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of an Update. Only this lets a device drop its answer; a PUBACK does not."""

    round: int
    phase: str
    verdict: str  # accepted, late, refused
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The coordinator will not work with this device, and why."""

    reason: str
    boot: int = 0  # of a later process under the same name, where that is why; whoever has it is not meant
    # Boot and sequence of the hello that it answers; only for who looks at them.
    answers: tuple[int, ...] = ()


HERE: Final = "here"  # reason of a state that tells nothing else, so nobody answers it


MOST_NAMED: Final = 64  # devices that a `here` names


@dataclass(frozen=True, slots=True)
class RoundStatus:
    """The coordinator's round, published to all: a device that is waited for and has no question sends a hello."""

    round: int
    phase: str
    attempt: int
    # For whom, by the first four bytes of the SHA-256 of the name; None: for many.
    waits: tuple[bytes, ...] | None

    @property
    def gathers(self) -> bool:
        """Whether no question is open, as devices are waited for."""
        return not self.phase and self.waits is None

    def names(self, device: str) -> bool:
        return self.waits is None or short_name(device) in self.waits


def short_name(device: str) -> bytes:
    return hashlib.sha256(device.encode()).digest()[:4]


@dataclass(frozen=True, slots=True)
class State:
    """Birth message and will: the broker publishes it in the sender's name when its connection is lost."""

    online: bool
    reason: str = ""
    who: str = ""  # host, process and folder of a coordinator: what a second one is told, also by its will
    now: RoundStatus | None = None


@dataclass(frozen=True, slots=True)
class Bye:
    """A device leaves on purpose."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Finished:
    """The run is over; devices may end."""

    rounds: int


@dataclass(frozen=True, slots=True)
class BlockRequest:
    """A receiver asks for blocks. The sender may send what is requested and has not arrived."""

    object: bytes
    ranges: tuple[tuple[int, int], ...]  # [first, past the last), at most MAX_RANGES of them
    again: bool = False  # asked before and never came: send it to me alone
    more: tuple[tuple[bytes, tuple[tuple[int, int], ...]], ...] = ()  # further objects, and ranges of each


Message: TypeAlias = (
    Hello | Welcome | Task | Update | Receipt | Refusal | State | Bye | Finished | BlockRequest
)
