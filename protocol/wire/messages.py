"""Define the messages of the wire: everything that one side can send to the other.

A message holds a few scalars. A message with tensors also has `arrays`: a read-only mapping from names to
NumPy arrays, which may stay on disk until they are read. No field is made for only one method.
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
    """The description that a receiver needs to fetch an object in blocks and to check each block.

    With a key, the blocks are sealed, and the name on the wire reveals nothing about the content. Each key
    is used for one object and one block size only, because the nonce of a block is its index.
    """

    object: bytes  # SHA-256 of the whole object
    size: int
    block: int  # bytes in every block but the last
    hashes: tuple[bytes, ...]  # first 16 bytes of the SHA-256 of each block
    # The kinds of the bytes, as (kind, number of bytes), in the order of the bytes. If `parts` is empty, only the
    # body describes the kinds.
    parts: tuple[tuple[str, int], ...]
    key: bytes = b""  # key of the blocks; empty if the blocks are not sealed

    @property
    def wire_name(self) -> bytes:
        """Return the name of the object in topics and blocks."""
        return hashlib.sha256(WIRE_NAME + self.key + self.object).digest() if self.key else self.object


NO_ANSWER: Final = "none"


@dataclass(frozen=True, slots=True)
class IndirectManifest:
    """The description of an object. Its manifest is too large for a packet, so it is sent as a second object."""

    object: bytes
    size: int
    key: bytes  # key of the object's blocks
    # Manifest of the second object. The second object contains the manifest of the first object, but not the key.
    manifest: Manifest


Offer: TypeAlias = Manifest | IndirectManifest


def objects_of(offer: Offer) -> set[bytes]:
    """Return all objects that are served for an offer."""
    return {offer.object, offer.manifest.object} if isinstance(offer, IndirectManifest) else {offer.object}


@dataclass(frozen=True, slots=True)
class Hello:
    """The message with which a device says that it is ready for work; it is sent after every connect."""

    device: str
    classes: int
    examples: int
    domain: str = ""
    software: str = ""
    protocol: tuple[int, int] = (1, 1)  # lowest and highest major version that the device supports
    plan: bytes = b""  # SHA-256 of the plan that the device has accepted; empty before it accepts a plan
    counts: tuple[int, ...] = ()  # training samples per class, only if the plan's method needs them
    holds: tuple[bytes, ...] = ()  # names of the broadcasts of which the device has all blocks
    round: int = 0  # round of the device's last update in this run
    # Phase of the device's last update in this run: NO_ANSWER before the first update, "" if it is not known.
    phase: str = ""
    base: bytes = b""  # broadcast that the last update was computed from
    can: tuple[
        str, ...
    ] = ()  # names of the message forms that the device understands, from the module `forms`
    names: tuple[str, ...] = ()  # names of the device's classes; only in the first hello of a connection
    names_hash: bytes = b""  # hash of the names, in all later hellos of the connection
    capacity: int = 0  # number of runs in which the device could take part in addition to its present runs
    working: str = ""  # run whose task the device works on; empty if it does not work
    answered: int = 0  # last round that the device has answered in the run of the header
    # The newest `State` frame of the coordinator with the highest epoch, as received. Its signature proves this epoch
    # to a coordinator with a lower epoch; all other hellos leave it out.
    last_state: bytes = b""


@dataclass(frozen=True, slots=True)
class About:
    """The information about a run that has no effect on computations.

    Information that changes a computation is in the plan, whose bytes are hashed.
    """

    can: tuple[str, ...] = ()  # message forms of the module `forms` that this coordinator understands
    uses: tuple[str, ...] = ()  # forms that a device needs to take part in this run
    names: tuple[str, ...] = ()  # names of the classes
    embedding: int = 0  # width of the network's embedding, which is also the width of prototypes
    # Names of metrics. An update may contain an index in this list instead of a name.
    metrics: tuple[str, ...] = ()
    # True if the method needs a device's `counts`. It is set only for a device that lists the form `counts`.
    counts: bool = False
    # The codec of a run whose codec loses nothing, as JSON. Sent only to a device that lists the form `codec`.
    codec: bytes = b""


@dataclass(frozen=True, slots=True)
class Welcome:
    """The description of a run: method, settings, network, seed. A device joins the run or sends a Bye."""

    plan: bytes  # the plan as JSON
    about: About = About()
    # Name of a run whose place this run takes on the device, and of a run whose half the device may begin with. Both
    # are sent only to a device that lists the form `runs`.
    instead: str = ""
    keep: str = ""


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """The properties of an array that an update must contain. The coordinator checks them.

    A name that ends with `.*` is a prefix. Such a name stands for all arrays of the broadcast that have this
    prefix and no ArraySpec of their own.
    """

    name: str
    dtype: str | None  # None stands for the dtype that this array has in the broadcast.
    # None stands for the shape that this array has in the broadcast. A name in the shape stands for a free length,
    # and equal names stand for equal lengths.
    shape: tuple[int | str, ...] | None
    most: int | None  # the largest allowed length of a dimension without a fixed length
    low: float | None
    high: float | None
    norm: float | None  # the largest Euclidean norm
    finite: bool
    rules: tuple[str, ...] = ()  # names of further rules; docs/protocol.md lists them


@dataclass(frozen=True, slots=True)
class Delta:
    """A coded form of the task's broadcast. Some deltas are applied to a broadcast that the device may hold."""

    reference: bytes  # SHA-256 of the broadcast to which the delta is applied; empty if there is none
    manifest: Manifest
    follows: bool = False  # the delta has one block, which is sent without a request


@dataclass(frozen=True, slots=True)
class Task:
    """The work for one device in one phase of one round; its tensors are sent as a broadcast."""

    round: int
    phase: str
    broadcast: Offer | None = None
    seconds: float = 0.0  # seconds until the deadline; only a hint, because the coordinator decides
    # Arrays that the update must contain. They are sent only to a device that lists the form `wants`.
    wants: tuple[ArraySpec, ...] = ()
    follows: bool = False  # the broadcast has one block, which is sent without a request
    # The device may send its update's blocks without a request, if the update has at most this number of blocks.
    credit: int = 0
    # Round and phase of this device's newest update that the method has used. Sent only in a run with a codec.
    took: tuple[int, str] | None = None
    # A shorter way to the same broadcast. Sent only in a run with [codec.down], to a device that lists `codec`.
    delta: Delta | None = None
    # Bytes for this device only, in a run with [secagg]: the shares that other devices have sealed to it.
    personal: bytes = b""


@dataclass(frozen=True, slots=True)
class Update:
    """The result that a device sends for a Task."""

    device: str
    round: int
    phase: str
    examples: int
    base: bytes = b""  # SHA-256 of the broadcast that the update was computed from
    arrays: Arrays = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    follows: bool = False  # the arrays are one block, which is sent without a request


@dataclass(frozen=True, slots=True)
class Receipt:
    """The coordinator's decision about an Update.

    A device keeps its update until it has the receipt. A PUBACK of the broker is not enough.
    """

    round: int
    phase: str
    verdict: str  # accepted, late or refused
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The message in which the coordinator refuses to work with a device and gives the reason."""

    reason: str
    # The boot of the later process, if the device is refused because a later process has the same name. Only
    # the earlier process is refused.
    boot: int = 0
    # Boot and sequence of the hello that is refused. They are sent only to a device that checks them.
    answers: tuple[int, ...] = ()


# The field `reason` of a `State` message that only shows that the coordinator runs. Devices do not reply to it.
HERE: Final = "here"
# The field `reason` of the `State` message that a broker publishes as the will of a party.
CONNECTION_LOST: Final = "connection lost"


MOST_PERSONAL: Final = 65_536  # largest number of bytes of a task's `personal`
MOST_STATE: Final = 512  # largest number of bytes of a hello's `last_state`
MOST_RUNS: Final = 8  # largest number of active runs of one coordinator
MOST_NAMED: Final = 64  # largest number of devices that a `State` message with the reason `here` lists


@dataclass(frozen=True, slots=True)
class RoundStatus:
    """The coordinator's round, published to all devices.

    A device that has no task sends a hello if the coordinator waits for this device.
    """

    round: int
    phase: str
    attempt: int
    # Devices that the coordinator waits for, each as the first four bytes of the SHA-256 of its name. None
    # stands for too many devices to list.
    waits: tuple[bytes, ...] | None

    @property
    def gathers(self) -> bool:
        """Return True if no task is open, because the coordinator still waits for devices to join."""
        return not self.phase and self.waits is None

    def names(self, device: str) -> bool:
        return self.waits is None or short_name(device) in self.waits


def short_name(device: str) -> bytes:
    return hashlib.sha256(device.encode()).digest()[:4]


@dataclass(frozen=True, slots=True)
class State:
    """A birth message or a will.

    When the connection of the sender is lost, the broker publishes the will in place of the sender.
    """

    online: bool
    reason: str = ""
    # Host, process and folder of a coordinator. A second coordinator can report these words. An MQTT will contains
    # the words too.
    who: str = ""
    now: RoundStatus | None = None
    # Names of the active runs. None if the coordinator leads one run only, which is then the run of the header.
    runs: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Bye:
    """The message of a device that leaves on purpose."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Finished:
    """The message that the run is over and that devices may end."""

    rounds: int


@dataclass(frozen=True, slots=True)
class BlockRequest:
    """The request of a receiver for blocks."""

    object: bytes
    ranges: tuple[tuple[int, int], ...]  # (first, last + 1) pairs, at most MAX_RANGES
    # True if the blocks were requested before and did not arrive. Then they are sent only to this receiver.
    again: bool = False
    # Further objects, and the requested ranges of each object.
    more: tuple[tuple[bytes, tuple[tuple[int, int], ...]], ...] = ()


# Largest number of bytes of the arguments of a command. An experiment has at most 65,536 bytes, and JSON needs two
# bytes for a line break or a quotation mark.
MOST_ARGS: Final = 2 * 65_536 + 4096


@dataclass(frozen=True, slots=True)
class CommandRequest:
    """A command of an operator to the coordinator."""

    id: bytes  # 16 bytes; a command that is sent again has the same id
    verb: str
    args: bytes  # a JSON object


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """The coordinator's answer to a command."""

    id: bytes
    verdict: str  # done, refused, conflict, denied, failed or unknown
    words: str
    data: bytes  # a JSON object


MOST_BY: Final = 64  # largest number of letters of the name that a `StepDown` message states


@dataclass(frozen=True, slots=True)
class Probe:
    """The question whether a coordinator leads. A coordinator's process sends it before it leads itself.

    The coordinator that leads publishes its state.
    """


@dataclass(frozen=True, slots=True)
class StepDown:
    """The request of a coordinator's process that does not lead yet: the coordinator of this epoch shall end."""

    epoch: int  # epoch that the sender has seen; a coordinator of another epoch ignores the request
    by: str  # where the sender runs, for people


MOST_NEWS: Final = 64  # Largest number of lines in a News.


@dataclass(frozen=True, slots=True)
class News:
    """New log lines of a run, for an operator who follows it. A run's lines count from 1 in each epoch."""

    first: int  # number of the first line
    lines: tuple[str, ...]
    over: str = ""  # final state of the run, after its last line; "" while the run is not over


Message: TypeAlias = (
    Hello
    | Welcome
    | Task
    | Update
    | Receipt
    | Refusal
    | State
    | Bye
    | Finished
    | BlockRequest
    | CommandRequest
    | CommandOutcome
    | Probe
    | StepDown
    | News
)
