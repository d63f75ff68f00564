"""The events, commands and stages of a run, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, TypeAlias

from protofleet.protocol.wire.reasons import Problem


class Stage(Enum):
    """The stage of a run; a phase is the part of a round in which the devices do one task of the method."""

    GATHERING = auto()  # The run waits for enough devices to begin a round.
    COMPUTING = auto()  # The server half computes on the thread of the worker.
    BLAMING = auto()  # The worker searches for the updates that made a round fail.
    COLLECTING = auto()  # A task was sent, and the run waits for updates or for the deadline.
    FINISHED = auto()


# Events: everything that can happen to the machine.
@dataclass(frozen=True, slots=True)
class Joined:
    device: str
    # True if the server half keeps an answer that the device sent under an enrolment that has ended.
    anew: bool = False


@dataclass(frozen=True, slots=True)
class Left:
    device: str
    reason: str = ""  # Reason why the device left, in words.
    # Time since which no message has arrived, if the connection of the device was lost.
    since: float | None = None


@dataclass(frozen=True, slots=True)
class Unenrolled:
    """The event that the enrolment of a device has ended.

    A device that has left can come back into the open phase. A device that is no longer enrolled cannot come
    back.
    """

    device: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Deselected:
    """The event that the run does not select a device of the open round any more.

    The device stays in the open attempt of the round, but no later attempt draws it.
    """

    device: str


@dataclass(frozen=True, slots=True)
class Answered:
    device: str
    round: int
    phase: str
    base: bytes
    problem: Problem | None = None


@dataclass(frozen=True, slots=True)
class Advanced:
    """The event that the server half has reached its next task, or the end of the round if the phase is None."""

    phase: str | None
    base: bytes = b""
    fault: str = ""  # At the end of a round: why its result cannot be used; "" if it can be used.
    # The validation accuracy at the end of a round. The accuracy is None if some present devices did not have
    # to report it, or if policy.stop does not need it.
    validation: float | None = None
    # Devices whose answers the server half keeps; they are not asked again.
    kept: frozenset[str] = frozenset()
    # At the end of a round: enrolled devices whose answers the server half does not keep.
    left: frozenset[str] = frozenset()
    # Fewest updates with which the phase of a masked sum closes; 0 for other phases, which need policy.quorum.
    least: int = 0
    seconds: float = 0.0  # Seconds for a short phase of a masked sum; 0 means policy.patience_seconds.
    # True if a device that answers this phase takes part in no other attempt of the round.
    final: bool = False
    ended: str = ""  # Reason why this attempt of the round has no result, so that the round begins again.
    # The devices of the last masked sum of each stage; empty if there is none.
    sums: tuple[frozenset[str], ...] = ()


@dataclass(frozen=True, slots=True)
class Blamed:
    """The event that the search for the cause of a failed round has ended.

    `devices` holds the devices whose updates made the round fail. It is empty if the search found no such device.
    """

    past: Recovered  # The data on the disk about the failed round.
    phase: str
    devices: tuple[str, ...] = ()
    words: str = ""
    tried: bool = False  # True if a test has shown that the server half can go on without the blamed updates.
    # True if one update is left out only to see whether the next round then reaches its quorum.
    trial: bool = False


# The causes of an EndEarly.
BUDGET: Final = "budget"
NOBODY_LEFT: Final = "nobody_left"
OPERATOR: Final = "operator"


@dataclass(frozen=True, slots=True)
class Paused:
    """The event that an operator pauses the run, or lets it go on.

    A pause begins at the end of the open round. Then no device is asked until the run goes on.
    """

    words: str  # Reason of the pause; "" if the run goes on.


@dataclass(frozen=True, slots=True)
class Extended:
    """The event that an operator sets the number of rounds of the run."""

    rounds: int


@dataclass(frozen=True, slots=True)
class Stopped:
    """The event that an operator ends the run now. Nothing more is asked or measured."""

    words: str


@dataclass(frozen=True, slots=True)
class Budgeted:
    """The event that the devices which can pay for a task may have changed; it replaces the earlier event."""

    # Devices whose budget does not hold one more round.
    no_round: frozenset[str] = frozenset()
    # Devices whose budget does not even hold an evaluation. They are in `no_round` too.
    no_evaluation: frozenset[str] = frozenset()
    # Number of enrolled devices whose budget of this run does not hold one more round. It never gets smaller.
    spent: int = 0
    able: int = 0  # Number of the other enrolled devices.
    words: str = ""  # The budget of the run, for messages.
    # Devices whose budget of the month, but not of the run, does not hold one more round.
    until_month: frozenset[str] = frozenset()
    over: str = ""  # The limit on the whole run that is spent, for messages; "" if none is spent.


@dataclass(frozen=True, slots=True)
class Woke:
    """The event that the time `RoundMachine.wake_at` is reached."""


@dataclass(frozen=True, slots=True)
class SentTask:
    """The training task of a round and its cohort, in a run with buffered rounds."""

    round: int
    phase: str
    base: bytes
    cohort: tuple[str, ...]


# Commands: all actions that the machine can request. The run carries them out in the order of the returned
# list.
@dataclass(frozen=True, slots=True)
class Save:
    """A command to store the state of the server half, the cohort and the roster on the disk."""

    round: int
    attempt: int
    cohort: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Open:
    """A command to store the training task of a buffered round, so that a restarted coordinator takes late updates.

    The next transaction makes this durable.
    """

    task: SentTask
    oldest: int  # The first round whose task is still needed.


@dataclass(frozen=True, slots=True)
class Pause:
    """A command to store on the disk the time at which a round ended.

    With this time, a restarted coordinator continues the pause after the round, and does not begin it again.
    """

    round: int
    ended: float  # Unix time of the end of the round.


@dataclass(frozen=True, slots=True)
class SavePause:
    """A command to store that an operator has paused the run; the next transaction makes this durable."""

    words: str  # Reason of the pause; "" if the run goes on.


@dataclass(frozen=True, slots=True)
class SaveRounds:
    """A command to store the number of rounds of the run; the next transaction makes this durable."""

    rounds: int


@dataclass(frozen=True, slots=True)
class SaveResult:
    """A command to store a command of an operator with its result."""

    id: bytes
    at: int  # Unix time.
    operator: str
    verb: str
    verdict: str
    words: str
    # Boot, newest sequence number and holder of the operator's name, if the command came through the broker.
    sender: tuple[int, int, str] | None = None


@dataclass(frozen=True, slots=True)
class Forget:
    """A command to delete the updates with damaged bytes. Their devices get the task again."""


@dataclass(frozen=True, slots=True)
class Rollback:
    """A command to set the server half back to its state at the last Save."""

    why: str = field(default="", compare=False)
    # Devices whose update for the open task was neither accepted nor refused.
    missing: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Advance:
    """A command to run the server half to its next task, with the updates of these devices."""

    round: int
    phase: str | None  # The phase whose updates are used, or None at the beginning of the round.
    devices: tuple[str, ...]
    # True if the round begins with an evaluation, or is the evaluation after the last round of training.
    evaluate: bool = False
    # Number of times that the round has begun again.
    attempt: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Close:
    """A command to store which devices a phase has used: their names are written to the disk."""

    round: int
    phase: str
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Blame:
    """A command to find the updates of a round that make the run fail, and their devices."""

    round: int
    why: str
    # True if the server half failed. Then the search runs the server half again without some updates.
    server_half: bool = False
    # Round -> devices whose updates were put aside so far.
    aside: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    trial: bool = False  # True if the search only chooses the next update to leave out.
    tried: tuple[str, ...] = ()  # Devices whose updates were left out before.
    # True if the search may start again after it has left out each update once.
    endless: bool = False


@dataclass(frozen=True, slots=True)
class PutAside:
    """A command to go back to the start of a round; this cannot be undone.

    From then on, the round uses only the updates of `devices` in `phase`.
    """

    round: int
    phase: str
    devices: tuple[str, ...]
    aside: tuple[str, ...]  # Devices whose updates are put aside.
    words: str
    # True if the updates are left out only to see whether the next round then reaches its quorum.
    trial: bool = False
    # Devices whose updates are used again after a trial without them, because the round failed in the trial too.
    returned: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Diverge:
    """A command to end the run, because there is no state from which the run could go on."""

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
    """A command to store an update on the disk, then send a receipt for it."""

    device: str
    round: int  # Round of the update's task.
    phase: str
    # Number of rounds between the task and the round in which the update counts; above 0 only in a buffered round.
    staleness: int = 0


@dataclass(frozen=True, slots=True)
class Repeat:
    """A command to send the receipt for an update again."""

    device: str
    round: int
    phase: str
    problem: Problem | None = None  # Reason why the update was refused; None if it was accepted.


@dataclass(frozen=True, slots=True)
class Drop:
    device: str
    round: int
    phase: str
    verdict: str  # The verdict on the update: "late" or "refused".
    problem: Problem


@dataclass(frozen=True, slots=True)
class Dismiss:
    """A command to inform a device that the run is over."""

    device: str


@dataclass(frozen=True, slots=True)
class Judge:
    """A command to store the validation accuracy of a round, and the reason if the run ends with this round."""

    round: int
    accuracy: float
    words: str  # Reason why the run ends with this round; "" if the run goes on.
    oldest: int  # The first round whose accuracy is still needed.


@dataclass(frozen=True, slots=True)
class EndEarly:
    """A command to store that the training ends before its last round; the next Save makes this durable."""

    round: int  # The last round of training.
    words: str  # The reason.
    by: str  # What ends the training: BUDGET, NOBODY_LEFT or OPERATOR.


@dataclass(frozen=True, slots=True)
class Finish:
    rounds: int


class IllegalEventError(RuntimeError):
    """The error raised if an event cannot happen at this stage; then the program that drives the machine is wrong."""


Event: TypeAlias = (
    "Joined | Left | Unenrolled | Deselected | Answered | Advanced | Blamed | Budgeted | Extended | Paused | "
    "Stopped | Woke"
)
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
    | SavePause
    | SaveRounds
    | SaveResult
    | Open
    | Send
    | Accept
    | Repeat
    | Drop
    | Dismiss
    | Judge
    | EndEarly
    | Finish
)


@dataclass(frozen=True, slots=True)
class Recovered:
    """The data on the disk about the round in which a coordinator died."""

    round: int
    attempt: int
    cohort: tuple[str, ...]
    # Closed phase -> devices whose updates are used.
    closed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Phase -> device -> base of its accepted update.
    accepted: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)
    roster: tuple[str, ...] = ()
    # Device -> the last round in which its updates were accepted, and the bases of these updates by phase.
    earlier: Mapping[str, tuple[int, Mapping[str, bytes]]] = field(default_factory=dict)
    # Round -> devices whose updates were put aside in this round.
    aside: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    # Round -> devices whose updates were left out, one at a time. In this way the coordinator finds an update that
    # makes the next round miss its quorum.
    tried: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    diverged: str = ""  # Reason why the run has diverged, or "".
    seconds: float = 0.0  # Seconds that earlier processes spent on the round, up to their last save.
    # Round -> validation accuracy, which policy.stop needs.
    judged: Mapping[int, float] = field(default_factory=dict)
    # The round with which policy.stop has ended the training, and the reason.
    stopped: tuple[int, str] | None = None
    # The early end of the training.
    ended_early: EndEarly | None = None
    # The last round that was followed by a pause, and the Unix time at which the round ended.
    ended: tuple[int, float] = (0, 0.0)
    ahead: tuple[Recovered, ...] = ()  # Later rounds that had begun; they are replayed after this round.
    # Device -> age of the task of its accepted update, in rounds, for the late updates of a buffered round.
    late: Mapping[str, int] = field(default_factory=dict)
    # The training tasks for which a late update may still arrive.
    tasks: tuple[SentTask, ...] = ()
