"""The events, the commands and the stages of a run, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TypeAlias

from protofleet.protocol.wire.reasons import Problem


class Stage(Enum):
    """The stage of a run; a phase is one task of a method within a round."""

    GATHERING = auto()  # waiting for enough devices to start a round
    COMPUTING = auto()  # the server half computes on its thread
    BLAMING = auto()  # searching, on that thread, for the updates that made a round fail
    COLLECTING = auto()  # a task was sent; waiting for updates or the deadline
    FINISHED = auto()


# Events: all that can happen to the coordinator.
@dataclass(frozen=True, slots=True)
class Joined:
    device: str


@dataclass(frozen=True, slots=True)
class Left:
    device: str
    reason: str = ""  # why it left, in words
    since: float | None = None  # time since which no message has arrived, if its connection was lost


@dataclass(frozen=True, slots=True)
class Unenrolled:
    """The event that the enrolment of a device has ended.

    A device that has only left may come back into the open phase; this device cannot.
    """

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
    """The event that the server half has reached its next `yield`, or its end if the phase is None."""

    phase: str | None
    base: bytes = b""
    fault: str = ""  # at the end of a round: why no device could go on from the result
    # At the end of a round: mean validation accuracy, if all present devices were asked for it and
    # policy.stop needs it.
    validation: float | None = None


@dataclass(frozen=True, slots=True)
class Blamed:
    """The event that names the devices whose updates made a round fail; without devices if the search failed."""

    past: Recovered  # the round as it is on the disk
    phase: str
    devices: tuple[str, ...] = ()
    words: str = ""
    tried: bool = False  # True if a try has shown that the server half can go on without these updates
    # True if one update is left out only to see whether the next round then reaches its quorum.
    trial: bool = False


@dataclass(frozen=True, slots=True)
class Woke:
    """The event that the time `RoundMachine.wake_at` is reached."""


# Commands: all actions that the machine can request. They are carried out in order.
@dataclass(frozen=True, slots=True)
class Save:
    """A command to make the server half's state, the cohort and the roster durable."""

    round: int
    attempt: int
    cohort: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pause:
    """A command to store durably the time at which a round ended.

    After a restart, the pause after the round then goes on.
    """

    round: int
    ended: float  # Unix time


@dataclass(frozen=True, slots=True)
class Forget:
    """A command to delete the updates with damaged bytes; their devices are asked again."""


@dataclass(frozen=True, slots=True)
class Rollback:
    """A command to set the server half back to its state at the last Save."""

    why: str = field(default="", compare=False)
    missing: tuple[str, ...] = field(default=(), compare=False)  # devices with no update and no verdict


@dataclass(frozen=True, slots=True)
class Advance:
    """A command to run the server half to its next `yield`, with the updates of these devices."""

    round: int
    phase: str | None  # the phase whose updates are used; None starts the round
    devices: tuple[str, ...]
    evaluate: bool = (
        False  # start with the task of the last evaluation, although its round number is not reached
    )


@dataclass(frozen=True, slots=True)
class Close:
    """A command to store durably the devices whose updates belong to a phase."""

    round: int
    phase: str
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Blame:
    """A command to find the devices whose updates in a round made it impossible to go on."""

    round: int
    why: str
    server_half: bool = False  # the server half cannot go on, so it can be tried without some updates
    aside: Mapping[int, tuple[str, ...]] = field(default_factory=dict)  # put aside so far: round -> devices
    trial: bool = False  # name one update that was not left out before
    tried: tuple[str, ...] = ()  # devices whose updates were left out before
    endless: bool = False  # if every update was left out once, name one of them again


@dataclass(frozen=True, slots=True)
class PutAside:
    """A command to go back permanently to the start of a round.

    From then on, only the updates of `devices` count in `phase`.
    """

    round: int
    phase: str
    devices: tuple[str, ...]
    aside: tuple[str, ...]  # devices whose updates are put aside
    words: str
    trial: bool = False  # True if it is only a try to see whether the next round then reaches its quorum
    returned: tuple[str, ...] = ()  # devices whose updates were put aside for a trial, and were not at fault


@dataclass(frozen=True, slots=True)
class Diverge:
    """A command to end the run permanently: there is no state that it could go on from."""

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
    """A command to make an update durable, then acknowledge it."""

    device: str
    round: int
    phase: str


@dataclass(frozen=True, slots=True)
class Repeat:
    """A command to send the verdict on an update again."""

    device: str
    round: int
    phase: str
    problem: Problem | None = None  # why the update was refused; None: it was accepted


@dataclass(frozen=True, slots=True)
class Drop:
    device: str
    round: int
    phase: str
    verdict: str  # late, refused
    problem: Problem


@dataclass(frozen=True, slots=True)
class Dismiss:
    """A command to inform a device that the run is over."""

    device: str


@dataclass(frozen=True, slots=True)
class Judge:
    """A command to store durably the validation accuracy of a round, and why the run ends with the round."""

    round: int
    accuracy: float
    words: str  # why the run ends; "": it goes on
    oldest: int  # the first round whose accuracy is still needed


@dataclass(frozen=True, slots=True)
class Finish:
    rounds: int


class IllegalEventError(RuntimeError):
    """An event that cannot happen at this stage; the code that drives the machine has an error."""


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
    """The data that the disk has about the round in which a coordinator died."""

    round: int
    attempt: int
    cohort: tuple[str, ...]
    closed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # phase -> devices
    accepted: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)  # phase -> device -> base
    roster: tuple[str, ...] = ()
    # Device -> the round of its newest accepted updates, and their bases by phase.
    earlier: Mapping[str, tuple[int, Mapping[str, bytes]]] = field(default_factory=dict)
    # Round -> devices whose updates were put aside in it.
    aside: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    # Round -> devices whose updates were left out one at a time, to see without which update the next round
    # reaches its quorum.
    tried: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    diverged: str = ""  # why the run has ended
    seconds: float = 0.0  # time that earlier processes spent on the round, as far as they saved it
    judged: Mapping[int, float] = field(default_factory=dict)  # round -> validation accuracy, for policy.stop
    stopped: tuple[int, str] | None = None  # the round with which policy.stop has ended the training, and why
    ended: tuple[int, float] = (0, 0.0)  # the last round that a pause followed, and the Unix time of its end
    ahead: tuple[Recovered, ...] = ()  # later rounds that had begun; this round is replayed first
