"""Define the messages of the wire: everything that one side can send to the other.

A message is a few scalars. If it carries tensors, it also has `arrays`: a read-only mapping from names to
NumPy arrays that may stay on disk until they are read. No field belongs to one method.
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
    """The description of an object: enough to fetch it in blocks and to check each block.

    With a key, its blocks travel sealed, under a name that tells nothing about their content. A key is for
    one division of one object into blocks and is never used for another, because the nonce of a block is its
    number.
    """

    object: bytes  # SHA-256 of the whole object
    size: int
    block: int  # bytes in every block but the last
    hashes: tuple[bytes, ...]  # first 16 bytes of the SHA-256 of each block
    # (kind, bytes) in order, so that every byte has a kind; (): only the body tells the kinds.
    parts: tuple[tuple[str, int], ...]
    key: bytes = b""  # key of its blocks; empty if they are not sealed

    @property
    def wire_name(self) -> bytes:
        """Return the name of the object in topics and blocks."""
        return hashlib.sha256(WIRE_NAME + self.key + self.object).digest() if self.key else self.object


NO_ANSWER: Final = "none"


@dataclass(frozen=True, slots=True)
class IndirectManifest:
    """An object whose manifest fits no packet, and so is an object too, which is described here."""

    object: bytes
    size: int
    key: bytes  # key of the object's blocks
    manifest: Manifest  # manifest of the object that holds the manifest, without the key


Offer: TypeAlias = Manifest | IndirectManifest


def objects_of(offer: Offer) -> set[bytes]:
    """Return all objects that are served for an offer."""
    return {offer.object, offer.manifest.object} if isinstance(offer, IndirectManifest) else {offer.object}


@dataclass(frozen=True, slots=True)
class Hello:
    """The message of a device that is ready for work, sent after every connect."""

    device: str
    classes: int
    examples: int
    domain: str = ""
    software: str = ""
    protocol: tuple[int, int] = (1, 1)  # lowest and highest major version that the device supports
    plan: bytes = b""  # SHA-256 of the plan that the device has accepted; empty if it has none yet
    counts: tuple[int, ...] = ()  # training samples per class, only if the plan's method needs them
    holds: tuple[bytes, ...] = ()  # broadcasts that the device has in full
    round: int = 0  # round of the device's last answer in this run
    phase: str = ""  # phase of the same answer; NO_ANSWER if there is none, empty if unknown
    base: bytes = b""  # broadcast that this answer was computed from
    can: tuple[str, ...] = ()  # forms of messages that were added later and that the device understands
    names: tuple[str, ...] = ()  # names of its classes; only in the first hello of a connection
    names_hash: bytes = b""  # hash of the names, in all later hellos of the connection


@dataclass(frozen=True, slots=True)
class About:
    """The information about a run that changes no computation.

    Information that changes a computation is in the plan, whose bytes are hashed.
    """

    can: tuple[str, ...] = ()  # forms of messages that were added later and that this coordinator understands
    uses: tuple[str, ...] = ()  # forms that a device needs to take part in this run
    names: tuple[str, ...] = ()  # names of the classes
    embedding: int = 0  # width of the network's embedding, which prototypes are made of
    metrics: tuple[str, ...] = ()  # an update may name each metric by its place here
    # Whether the method needs a device's `counts`, only for a device that asks to be told.
    counts: bool = False


@dataclass(frozen=True, slots=True)
class Welcome:
    """The description of a run: method, settings, network, seed. A device joins it or sends a Bye."""

    plan: bytes  # JSON
    about: About = About()


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """The array that an answer must hold under one name, as the coordinator checks it.

    A name that ends with `.*` stands for all arrays of the broadcast that begin so and have no row of their
    own.
    """

    name: str
    dtype: str | None  # None: as in the broadcast
    # None: as in the broadcast. A name in the shape is a free length, which is the same for equal names.
    shape: tuple[int | str, ...] | None
    most: int | None  # the highest value of a free length
    low: float | None
    high: float | None
    norm: float | None  # the largest Euclidean norm
    finite: bool
    rules: tuple[str, ...] = ()  # names of further rules; docs/protocol.md lists them


@dataclass(frozen=True, slots=True)
class Task:
    """The work for one device in one phase of one round; the tensors come as a broadcast."""

    round: int
    phase: str
    broadcast: Offer | None = None
    seconds: float = 0.0  # seconds until the deadline; only a hint, because the coordinator decides
    # Arrays that the answer must hold, only for a device that asks to be told.
    wants: tuple[ArraySpec, ...] = ()
    follows: bool = False  # the broadcast has one block, which comes without a request
    credit: int = 0  # blocks of the answer that are asked for in advance, if it has no more


@dataclass(frozen=True, slots=True)
class Update:
    """A device's answer to a Task."""

    device: str
    round: int
    phase: str
    examples: int
    base: bytes = b""  # SHA-256 of the broadcast that it was computed from
    arrays: Arrays = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    follows: bool = False  # the arrays are one block, which comes without a request


@dataclass(frozen=True, slots=True)
class Receipt:
    """The result of an Update.

    Only a receipt lets a device drop its answer; a PUBACK does not.
    """

    round: int
    phase: str
    verdict: str  # accepted, late, refused
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The message that the coordinator will not work with this device, with the reason."""

    reason: str
    # Boot of a later process with the same name, if this is the reason. The process with this boot is not
    # refused.
    boot: int = 0
    # Boot and sequence of the hello that it answers, only for a device that checks them.
    answers: tuple[int, ...] = ()


HERE: Final = "here"  # reason of a state without other information, which no device answers


MOST_NAMED: Final = 64  # the most devices that a `here` names


@dataclass(frozen=True, slots=True)
class RoundStatus:
    """The coordinator's round, published to all devices.

    A device that is waited for and has no question sends a hello.
    """

    round: int
    phase: str
    attempt: int
    # Devices that are waited for, each as the first four bytes of the SHA-256 of its name; None for many.
    waits: tuple[bytes, ...] | None

    @property
    def gathers(self) -> bool:
        """Return whether no question is open, as devices are waited for."""
        return not self.phase and self.waits is None

    def names(self, device: str) -> bool:
        return self.waits is None or short_name(device) in self.waits


def short_name(device: str) -> bytes:
    return hashlib.sha256(device.encode()).digest()[:4]


@dataclass(frozen=True, slots=True)
class State:
    """A birth message or a will.

    The broker publishes the will in the sender's name when the sender's connection is lost.
    """

    online: bool
    reason: str = ""
    who: str = ""  # host, process and folder of a coordinator, for a second one to read, also from the will
    now: RoundStatus | None = None


@dataclass(frozen=True, slots=True)
class Bye:
    """The message of a device that leaves on purpose."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Finished:
    """The message that the run is over; devices may end."""

    rounds: int


@dataclass(frozen=True, slots=True)
class BlockRequest:
    """The request of a receiver for blocks.

    The sender may send blocks that are requested and have not arrived.
    """

    object: bytes
    ranges: tuple[tuple[int, int], ...]  # [first, past the last), at most MAX_RANGES of them
    again: bool = False  # the blocks were requested before and have not come; send them only to this receiver
    # Further objects, and the ranges of each.
    more: tuple[tuple[bytes, tuple[tuple[int, int], ...]], ...] = ()


Message: TypeAlias = (
    Hello | Welcome | Task | Update | Receipt | Refusal | State | Bye | Finished | BlockRequest
)
