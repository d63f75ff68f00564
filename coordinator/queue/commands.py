"""Decide the commands of operators on the queue: submit, stop, pause, resume and extend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

from protofleet.coordinator.devices.labels import DeviceLabels
from protofleet.coordinator.devices.selection import DeviceSelection
from protofleet.coordinator.queue.generation import MOST_GENERATION, MOST_LETTERS, wire_name
from protofleet.coordinator.queue.states import (
    FINAL,
    NEXT_STATE,
    PAUSED,
    PAUSING,
    STOPPED,
    SUBMITTED,
    QueuedRun,
)
from protofleet.coordinator.spool.origin import Origin
from protofleet.protocol.wire.printable import printable

DONE: Final = "done"
REFUSED: Final = "refused"
CONFLICT: Final = "conflict"
DENIED: Final = "denied"
SHOWN: Final = 20  # Number of earlier commands that `show` returns.
MOST_LOGGED: Final = 200  # Number of earlier commands that `log` returns.
MOST_REASON: Final = 200  # Largest number of letters of an operator's reason.
MOST_WORDS: Final = 500  # Largest number of letters of the words of a result.
MOST_OPEN: Final = 1000  # Largest number of runs that are not over.
MOST_ENDED: Final = 1000  # Largest number of runs that are over and kept in the queue.
MOST_PRIORITY: Final = 1000
PAST: Final = {"pause": "paused", "resume": "resumed", "stop": "stopped"}


@dataclass(frozen=True, slots=True)
class Sender:
    """An operator who has sent a command through the broker.

    The boot and the newest sequence number of the operator are stored together with the command, so a later process
    does not accept the same message again.
    """

    grants: frozenset[str]
    boot: int
    newest: int
    holder: str


@dataclass(frozen=True, slots=True)
class QueueCommand:
    id: bytes
    operator: str
    verb: str
    run: str
    reason: str = ""
    rounds: int = 0  # Number of rounds of `extend`.
    sender: Sender | None = None  # None for a command that was given on this machine.
    revision: int | None = (
        None  # Revision of the row that the operator has looked at, if the command names it.
    )
    # For `resume`: go on under the next name on the wire, and let devices begin with the half that they have.
    new_generation: bool = False
    keeps_halves: bool = False


@dataclass(frozen=True, slots=True)
class Submission:
    """The part of the command `submit` that is not in every command. The experiment was checked already."""

    experiment: str
    rounds: int
    after: str = ""
    priority: int = 0
    origin: Origin | None = None  # The snapshot of another run with which the run starts.
    problem: str = ""  # Reason why the run cannot start from another run.
    selection: DeviceSelection | None = None
    quorum: int = 1
    generation: int = 1  # The generation of the run's folder, if it is there already.


@dataclass(frozen=True, slots=True)
class Decision:
    """The rows that a command changes or deletes, and its result."""

    verdict: str
    words: str
    changed: tuple[QueuedRun, ...] = ()
    deleted: tuple[str, ...] = ()
    labelled: tuple[str, DeviceLabels] | None = None  # A device, and its new group and labels.


class CarriedOut(Protocol):
    """A command that was carried out, with its result."""

    @property
    def at(self) -> int: ...
    @property
    def operator(self) -> str: ...
    @property
    def verb(self) -> str: ...
    @property
    def verdict(self) -> str: ...
    @property
    def words(self) -> str: ...


def operator_words(operator: str, reason: str) -> str:
    """Return the operator and the reason of a command."""
    said = printable(reason)[:MOST_REASON]
    return f"{operator}: {said}" if said else operator


def shown_commands(commands: Iterable[CarriedOut]) -> list[dict[str, Any]]:
    """Return commands as `show` shows them."""
    return [
        {"at": one.at, "operator": one.operator, "verb": one.verb, "verdict": one.verdict, "words": one.words}
        for one in commands
    ]


def training_is_over(run: str) -> str:
    """Return the refusal of `extend` for a run whose training is over."""
    return f"the training is over; `protofleet submit FILE --from {run}` begins a new run with its model"


def rounds_are_fixed(method: str, reason: str) -> str:
    """Return the refusal of `extend` for a method whose settings depend on the number of rounds."""
    return f"{method} cannot have another number of rounds, because {reason}; submit a run with more rounds"


def show_command(run: Path, sender: Sender | None) -> str:
    """Return the command that shows the run of this folder to the sender of a command."""
    return f"protofleet show {run.name} --operator FILE" if sender else f"protofleet show {run}"


def conflict_words(run: str, found: int, revision: int, state: str, look: str) -> str:
    """Return the words of a command for a revision that the run does not have any more.

    `look` is the command that shows the run.
    """
    return (
        f"{run} has changed: it has revision {found} and not {revision}, and is {state}; look at it with "
        f"`{look}`, and send the command for revision {found}"
    )


def decide(
    command: QueueCommand, runs: Mapping[str, QueuedRun], at: int, submission: Submission | None = None,
    refusal: str = "", folder: Path = Path("runs"),
) -> Decision:  # fmt: skip
    """Decide a command; `refusal` is the reason why the run itself cannot do it, or "".

    `folder` holds the folders of the runs.
    """
    if submission is not None:
        return _submit(command, submission, runs, at)
    run = runs.get(command.run)
    if run is None:
        return Decision(REFUSED, f"the queue has no run {command.run}; `protofleet runs` lists the runs")
    if command.revision is not None and command.revision != run.revision:
        look = show_command(folder / run.name, command.sender)
        return Decision(CONFLICT, conflict_words(run.name, run.revision, command.revision, run.state, look))
    if command.verb == "extend":
        return _extend(command, run, refusal)
    if command.new_generation:
        return _new_generation(command, run, runs)
    if refusal:
        return Decision(REFUSED, refusal)
    state = NEXT_STATE.get((run.state, command.verb))
    if state is None:
        name = "" if run.may_come_again else " under another name"
        return Decision(REFUSED, f"the run is {run.state}; submit it again{name}")
    if state == run.state:
        return Decision(
            DONE,
            f"the run is {state} already" if state in (STOPPED, PAUSED, PAUSING) else f"the run is {state}",
        )
    reason = f"{PAST[command.verb]} by {operator_words(command.operator, command.reason)}"
    changed = replace(run, state=state, reason=reason, revision=run.revision + 1)
    if command.verb == "resume":
        changed = replace(changed, restored=0)
    if state == STOPPED:
        # Nothing is left to do for a run that has not started.
        changed = replace(changed, ended=at, closed=int(not run.started))
    return Decision(DONE, f"the run is {state}", (changed,))


def _new_generation(command: QueueCommand, run: QueuedRun, runs: Mapping[str, QueuedRun]) -> Decision:
    """Let a paused run go on under its next name on the wire."""
    if run.state != PAUSED:
        return Decision(
            REFUSED, f"the run is {run.state}; only a paused run gets a new generation, so pause it first"
        )
    numbers = range(run.generation + 1, MOST_GENERATION + 1)
    # Another run may have this name as its own name.
    number = next((one for one in numbers if wire_name(run.name, one) not in runs), 0)
    if not number or len(run.name) > MOST_LETTERS:
        return Decision(
            REFUSED,
            f"the name has {len(run.name)} letters, and the run has generation {run.generation}; the limits are "
            f"{MOST_LETTERS} and {MOST_GENERATION}. Submit another run with --from {run.name}",
        )
    reason = f"resumed by {operator_words(command.operator, command.reason)}"
    changed = replace(
        run, state=SUBMITTED, reason=reason, revision=run.revision + 1, restored=0, generation=number,
        kept_from=run.kept_from if command.keeps_halves else number,
    )  # fmt: skip
    halves = "keep their halves" if command.keeps_halves else "begin with new halves"
    return Decision(DONE, f"the run goes on as {changed.on_wire.wire_name}; its devices {halves}", (changed,))


def _extend(command: QueueCommand, run: QueuedRun, refusal: str) -> Decision:
    if run.state in FINAL:
        return Decision(REFUSED, training_is_over(run.name))
    if refusal:
        return Decision(REFUSED, refusal)
    if command.rounds == run.rounds:
        return Decision(DONE, f"the run has {run.rounds} rounds already")
    changed = replace(run, rounds=command.rounds, revision=run.revision + 1)
    return Decision(DONE, f"the run has {command.rounds} rounds now", (changed,))


def _submit(
    command: QueueCommand, submission: Submission, runs: Mapping[str, QueuedRun], at: int
) -> Decision:
    if problem := _problem(command, submission, runs):
        return Decision(REFUSED, problem)
    row = QueuedRun(
        command.run, max((run.number for run in runs.values()), default=0) + 1, SUBMITTED,
        f"waits for the end of {submission.after}" if submission.after else "waits for its turn",
        1, submission.rounds, submission.priority, submission.after, submission.experiment, command.operator, at,
    )  # fmt: skip
    # The devices may hold what belongs to an earlier generation of a run of this name.
    number = max(submission.generation, *(run.generation for run in (runs.get(row.name),) if run), 1)
    row = replace(row, generation=number, kept_from=number)
    words = f"{row.name} is submitted"
    if origin := submission.origin:
        row = replace(row, origin_run=origin.run, origin_round=origin.round, origin_object=origin.object)
        words += f"; it starts with {origin.words()}"
    others = {name: run for name, run in runs.items() if name != row.name}
    return Decision(DONE, words, (row,), _forgotten(others, submission.after))


def _problem(command: QueueCommand, submission: Submission, runs: Mapping[str, QueuedRun]) -> str:
    if command.run in runs and not runs[command.run].may_come_again:
        return f"there is a run {command.run} already; choose another name with --name"
    if taken := next(
        (
            run
            for run in runs.values()
            if command.run in (*run.on_wire.earlier, run.on_wire.wire_name) and run.name != command.run
        ),
        None,
    ):
        return f"{command.run} is a name of {taken.name} on the wire; choose another name with --name"
    if submission.problem:
        return submission.problem
    if submission.after == command.run:
        return f"{command.run} cannot come after itself; name another run with --after"
    if submission.after and submission.after not in runs:
        return f"the queue has no run {submission.after}; `protofleet runs` lists the runs"
    if abs(submission.priority) > MOST_PRIORITY:
        return f"the priority is {submission.priority}; it must be from -{MOST_PRIORITY} to {MOST_PRIORITY}"
    if sum(run.state not in FINAL for run in runs.values()) >= MOST_OPEN:
        return f"the queue has {MOST_OPEN} runs that are not over; stop some, or wait until some are over"
    return ""


def _forgotten(runs: Mapping[str, QueuedRun], after: str) -> tuple[str, ...]:
    """Return the runs that the queue forgets, because more than MOST_ENDED runs are over. Their folders stay."""
    needed = {after, *(run.after for run in runs.values() if run.state not in FINAL)}
    over = [run for run in runs.values() if run.closed and run.name not in needed]
    return tuple(
        run.name for run in sorted(over, key=lambda run: run.ended)[: max(0, len(over) - MOST_ENDED)]
    )
