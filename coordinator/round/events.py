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
class Unenrolled:
    """Its enrolment has ended: who has merely left may come back into the open phase, and this one cannot."""

    device: str
    reason: str = ""


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
    # At its end: mean validation accuracy, where all present devices were asked for it and policy.stop wants it.
    validation: float | None = None


@dataclass(frozen=True, slots=True)
class Blamed:
    """Whose answers brought a round to nothing, as far as can be told; no device: none is told from the others."""

    past: Recovered  # the round, as the disk has it
    phase: str
    devices: tuple[str, ...] = ()
    words: str = ""
    tried: bool = False  # without them the server half goes on
    trial: bool = False  # one answer, left out to see whether the round after it reaches its quorum then


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
class Pause:
    """Make durable when a round ended: the pause after it goes on from there in a later process."""

    round: int
    ended: float  # Unix time


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
    evaluate: bool = (
        False  # start with the question of the last evaluation, though this is not its round by number
    )


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
    trial: bool = False  # name one answer that was not left out before
    tried: tuple[str, ...] = ()  # whose answers were
    endless: bool = False  # where all were, name one again


@dataclass(frozen=True, slots=True)
class PutAside:
    """Go back to the start of a round, for good, and count its phase as that of these devices alone."""

    round: int
    phase: str
    devices: tuple[str, ...]
    aside: tuple[str, ...]  # whose answers are put aside
    words: str
    trial: bool = False  # to see whether the round after it reaches its quorum then
    returned: tuple[str, ...] = ()  # whose answers were put aside for that, and were not at fault


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
class Judge:
    """Make durable which validation accuracy a round has shown, and why the run ends with it, if it does."""

    round: int
    accuracy: float
    words: str  # why the run ends; nothing: it goes on
    oldest: int  # the first round whose accuracy is still needed


@dataclass(frozen=True, slots=True)
class Finish:
    rounds: int


class IllegalEventError(RuntimeError):
    """What has been said to the machine cannot happen at this stage: an error of whoever drives it."""


Event: TypeAlias = "Joined | Left | Unenrolled | Answered | Advanced | Blamed | Woke"
Command: TypeAlias = (
    Forget
    | Save
    | Rollback
    | Advance
    | Close
    | Blame
    | PutAside
    | Diverge
    | Pause
    | Send
    | Accept
    | Repeat
    | Drop
    | Dismiss
    | Judge
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
    # Device -> round, its bases.
    earlier: Mapping[str, tuple[int, Mapping[str, bytes]]] = field(default_factory=dict)
    # Round -> whose answers were put aside in it.
    aside: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    # Round -> whose answers were left out one at a time, to see without which the next round reaches its quorum.
    tried: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    diverged: str = ""  # why the run has ended
    seconds: float = 0.0  # that earlier processes were at it, as far as they have written that down
    judged: Mapping[int, float] = field(default_factory=dict)  # round -> validation accuracy, for policy.stop
    stopped: tuple[int, str] | None = None  # the round with which policy.stop has ended the training, and why
    ended: tuple[int, float] = (0, 0.0)  # the last round that a pause followed, and the Unix time of its end
    ahead: tuple[Recovered, ...] = ()  # rounds after it that had begun, where its replay comes first
