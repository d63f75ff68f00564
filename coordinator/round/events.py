"""What can happen to a coordinator, what it can want, and the rules it keeps: plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TypeAlias

from protofleet.protocol.wire.reasons import Problem


class Stage(Enum):
    """Of a run; a phase is what a method asks for within one round."""

    GATHERING = auto()  # waiting for enough devices to start a round
    COMPUTING = auto()  # the server half is at work on its thread
    BLAMING = auto()  # so is the search for whose answers brought a round to nothing
    COLLECTING = auto()  # an ask is out; waiting for answers or the deadline
    FINISHED = auto()


@dataclass(frozen=True, slots=True)
class Policy:
    rounds: int
    quorum: int = 1  # the k of k-of-n: fewer answers make no round
    cohort: int = 0  # the n, drawn anew each round; 0 invites everybody present
    gather: int = 0  # so many devices the first round waits for, for as long as one ask may take
    patience_seconds: float = 600.0  # how long a cohort gets for one ask
    grace_seconds: float = 10.0  # how long a device that has left may take to come back
    settle_seconds: float = 2.0  # how long a quorum waits for more before a round starts
    spares: int = 0  # so many more are invited; the first `cohort` answers make the phase
    straggler_factor: float = (
        2.5  # a quorum waits for the rest so many times the median answer takes; 0: patience
    )
    straggler_seconds: float = 0.5  # and at least so long
    flaps: int = 5  # losses of the connection within flap_seconds: it is asked, but not counted on; 0: never
    flap_seconds: float = 300.0

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError(f"rounds is {self.rounds}, it must be at least 1")
        if self.quorum < 1:
            raise ValueError(f"quorum is {self.quorum}, it must be at least 1")
        if self.cohort < 0 or 0 < self.cohort < self.quorum:
            raise ValueError(
                f"cohort is {self.cohort}, it must be 0 (all) or at least quorum = {self.quorum}"
            )
        if self.gather < 0:
            raise ValueError(f"gather is {self.gather}, it must be 0 (a quorum is enough) or more")
        if self.spares < 0 or (self.spares and not self.cohort):
            raise ValueError(
                f"spares is {self.spares} with cohort = {self.cohort}, it must be 0 or more; 0 where all are invited"
            )
        if self.straggler_factor and not 1 <= self.straggler_factor < float("inf"):
            raise ValueError(f"straggler_factor is {self.straggler_factor}, it must be 0 (off) or at least 1")
        if self.flaps < 0 or self.flaps == 1:
            raise ValueError(f"flaps is {self.flaps}, it must be 0 (off) or at least 2")
        for name in (
            "patience_seconds",
            "grace_seconds",
            "settle_seconds",
            "flap_seconds",
            "straggler_seconds",
        ):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)}, it must be 0 or more")
        if self.patience_seconds == 0:
            raise ValueError("patience_seconds is 0, nobody could answer in time")


# Events: everything that can happen to the coordinator.
@dataclass(frozen=True, slots=True)
class Joined:
    device: str


@dataclass(frozen=True, slots=True)
class Left:
    device: str
    reason: str = ""  # in its own words
    since: float | None = None  # of whom nothing has been heard for a while


@dataclass(frozen=True, slots=True)
class Answered:
    device: str
    round: int
    phase: str
    base: bytes
    problem: Problem | None = None


@dataclass(frozen=True, slots=True)
class Advanced:
    """The server half has come to its next `yield`, or (phase None) to its end."""

    phase: str | None
    base: bytes = b""
    fault: str = ""  # at its end: why nobody could go on from what it has come to


@dataclass(frozen=True, slots=True)
class Blamed:
    """Whose answers brought a round to nothing, as far as can be told; no device: none is told from the others."""

    past: Recovered  # the round, as the disk has it
    phase: str
    devices: tuple[str, ...] = ()
    words: str = ""
    tried: bool = False  # without them the server half goes on


@dataclass(frozen=True, slots=True)
class Woke:
    """The time of `RoundMachine.wake_at` has come."""


# Commands: everything the coordinator can want. Carry them out in order.
@dataclass(frozen=True, slots=True)
class Save:
    """Make the server half's state, the cohort and the roster durable."""

    round: int
    attempt: int
    cohort: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Forget:
    """That those answers are in whose bytes were found damaged: they are asked for again."""


@dataclass(frozen=True, slots=True)
class Rollback:
    """Put the server half back to the last Save."""

    why: str = field(default="", compare=False)
    missing: tuple[str, ...] = field(default=(), compare=False)  # devices, without a verdict too


@dataclass(frozen=True, slots=True)
class Advance:
    """Run the server half to its next `yield`, giving it the answers of these devices."""

    round: int
    phase: str | None  # whose answers; None starts the round
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Close:
    """Make durable whose answers make up a phase."""

    round: int
    phase: str
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Blame:
    """Find whose answers to a round leave nobody anything to go on from."""

    round: int
    why: str
    server_half: bool = False  # it is the server half that cannot go on, so it can be tried without some
    aside: Mapping[int, tuple[str, ...]] = field(default_factory=dict)  # so far: round -> devices


@dataclass(frozen=True, slots=True)
class PutAside:
    """Go back to the start of a round, for good, and count its phase as that of these devices alone."""

    round: int
    phase: str
    devices: tuple[str, ...]
    aside: tuple[str, ...]  # whose answers are put aside
    words: str


@dataclass(frozen=True, slots=True)
class Diverge:
    """End the run, for good: there is no state that it could go on from."""

    round: int
    words: str


@dataclass(frozen=True, slots=True)
class Send:
    device: str
    round: int
    phase: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Accept:
    """Make an answer durable, then acknowledge it."""

    device: str
    round: int
    phase: str


@dataclass(frozen=True, slots=True)
class Repeat:
    """Say again what was said of an answer."""

    device: str
    round: int
    phase: str
    problem: Problem | None = None  # why it was refused; None: it was accepted


@dataclass(frozen=True, slots=True)
class Drop:
    device: str
    round: int
    phase: str
    verdict: str  # late, refused
    problem: Problem


@dataclass(frozen=True, slots=True)
class Dismiss:
    """Tell a device that the run is over."""

    device: str


@dataclass(frozen=True, slots=True)
class Finish:
    rounds: int


class IllegalEventError(RuntimeError):
    """What has been said to the machine cannot happen at this stage: an error of whoever drives it."""


Event: TypeAlias = "Joined | Left | Answered | Advanced | Blamed | Woke"
Command: TypeAlias = (
    Forget
    | Save
    | Rollback
    | Advance
    | Close
    | Blame
    | PutAside
    | Diverge
    | Send
    | Accept
    | Repeat
    | Drop
    | Dismiss
    | Finish
)


@dataclass(frozen=True, slots=True)
class Recovered:
    """What the disk remembers of the round in which a coordinator died."""

    round: int
    attempt: int
    cohort: tuple[str, ...]
    closed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # phase -> devices
    accepted: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)  # phase -> device -> base
    roster: tuple[str, ...] = ()
    earlier: Mapping[str, tuple[int, Mapping[str, bytes]]] = field(
        default_factory=dict
    )  # device -> round, its bases
    aside: Mapping[int, tuple[str, ...]] = field(
        default_factory=dict
    )  # round -> whose answers were put aside in it
    diverged: str = ""  # why the run has ended
    seconds: float = 0.0  # that earlier processes were at it, as far as they have written that down
    ahead: tuple[Recovered, ...] = ()  # rounds after it that had begun, where its replay comes first
