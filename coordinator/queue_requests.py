"""Read the requests of operators on the queue, and pass them to the event loop's thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from protofleet.coordinator.moving.place import HAND_OVER, CoordinatorPlace, demand_here
from protofleet.coordinator.queue.commands import REFUSED, QueueCommand, Sender, Submission
from protofleet.coordinator.queue.generation import MOST_LETTERS
from protofleet.coordinator.queue.labelling import Labelling
from protofleet.coordinator.request_form import (
    ID,
    MOST_SHOWN,
    NO_ANSWER,
    OF_NO_RUN,
    RequestHandler,
    answer_of_loop,
    demand_known_keys,
    denial_of,
    generation_in,
    revision_in,
    rounds_in,
)
from protofleet.coordinator.service_settings import MOST_EXPERIMENT, ServiceSettings
from protofleet.coordinator.spool.generations import read_progress
from protofleet.coordinator.spool.index import check_run
from protofleet.coordinator.spool.origin import saved_states
from protofleet.coordinator.start_from import start_from
from protofleet.methods.contract.plan import Plan
from protofleet.methods.plugins.authors import AuthorError
from protofleet.protocol.security.operators import SHOWS
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.wire.names import RULE, valid_name
from protofleet.protocol.wire.printable import printable

VERBS: Final = (*SHOWS, "submit", "pause", "resume", "extend", "stop", "label", HAND_OVER)
MOST_REQUEST: Final = 8 * MOST_EXPERIMENT  # JSON needs several bytes for some characters of an experiment.

QueueAnswer = Mapping[str, Any]
# The arguments are the command, its further parts, and the reason why it is refused, or "".
Execute = Callable[[QueueCommand, Submission | Labelling | None, str], QueueAnswer]


def queue_commands(
    settings: ServiceSettings, execute: Execute, put: Callable[[Callable[[], None]], None]
) -> RequestHandler:
    """Return a function that carries out a request and returns its answer; any thread may call it.

    `put` makes the thread of the event loop call a function, and `execute` carries out a command on that thread.
    """

    def handle(user: str, request: Mapping[str, Any], sender: Sender | None = None) -> QueueAnswer:
        try:
            command = command_in(request, user, sender)
        except ValueError as error:
            return {"verdict": REFUSED, "words": str(error)}
        more: Submission | Labelling | None = None
        if not (refusal := problem_of(command)) and not denial_of(command):
            try:
                if command.verb == "submit":
                    more = submission_in(request, command.run, settings)
                elif command.verb == "label":
                    more = labelling_in(request)
            # These are the errors of wrong settings, of plug-ins, and of a library that is not installed.
            except (ValueError, AuthorError, ImportError) as error:
                refusal = str(error)
        return answer_of_loop(put, lambda reply: reply(execute(command, more, refusal))) or NO_ANSWER

    return handle


def command_in(request: Mapping[str, Any], user: str, sender: Sender | None = None) -> QueueCommand:
    match request:
        case {"id": str(name), "verb": str(verb), "run": str(run), "reason": str(reason)} if ID.fullmatch(
            name
        ):
            demand_known_keys(request)
            revision = revision_in(request)
            return QueueCommand(
                bytes.fromhex(name), user, verb, run, reason, rounds_in(request), sender, revision,
                *generation_in(request),
            )  # fmt: skip
    raise SettingsError("a request has the strings id (32 hexadecimal digits), verb, run and reason")


def problem_of(command: QueueCommand) -> str:
    """Return the reason why a command cannot be carried out in any state of the queue, or ""."""
    if command.verb not in VERBS:
        return f"there is no command {command.verb[:MOST_SHOWN]!r}; there are {', '.join(VERBS)}"
    try:
        if command.run or command.verb not in OF_NO_RUN:
            valid_name(command.run)
    except ValueError:
        size = f" ({len(command.run):,} letters)" if len(command.run) > MOST_SHOWN else ""
        return f"{command.run[:MOST_SHOWN]!r}{size} is not the name of a run; a name has {RULE}"
    if command.verb == "submit" and (letters := len(command.run)) > MOST_LETTERS:
        limit = f"the limit is {MOST_LETTERS}, choose another name with --name"
        return f"the name {command.run} has {letters} letters; {limit}"
    return ""


def loggable(command: QueueCommand) -> QueueCommand:
    """Return a command whose strings are short enough for the log of commands."""
    run = "" if problem_of(replace(command, verb="show")) else command.run
    return replace(command, run=run, verb=printable(command.verb)[:MOST_SHOWN])


def _with_origin(
    made: Submission, source: Any, name: str, plan: Plan, settings: ServiceSettings
) -> Submission:  # fmt: skip
    """Add the snapshot of the run `source`, and link this snapshot into the folder of the run `name`.

    A problem is not raised, because the command may have been carried out already, and then its result is repeated.
    """
    if not source:
        return made
    try:
        return replace(
            made, origin=start_from(settings.folder, str(source), name, plan, settings.own.plugins)
        )
    except (ValueError, OSError) as error:
        return replace(made, problem=str(error))


def submission_in(request: Mapping[str, Any], name: str, settings: ServiceSettings) -> Submission:
    """Check the experiment of a request; raise an error if the run could not start with it."""
    match request:
        case {"experiment": str(text), "after": str(after), "priority": int(priority)}:
            run = settings.of_run(name, text)
            plan = run.plan()
            demand_here(CoordinatorPlace(settings.folder, run.name))
            check_run(settings.folder / run.name / "coordinator", run.name, plan.encode().decode())
            # Otherwise the thread of the event loop would import them, and all other runs would wait.
            plan.import_libraries()
            saved = saved_states(settings.folder / run.name / "coordinator")
            rounds = saved.rounds if saved else run.rounds
            made = Submission(
                text, rounds, after, priority, selection=run.select, quorum=run.policy.quorum,
                generation=read_progress(settings.folder / run.name)[1],
            )  # fmt: skip
            return _with_origin(made, request.get("from", ""), run.name, plan, settings)
    raise SettingsError("a submission has the strings experiment and after, and the whole number priority")


def labelling_in(request: Mapping[str, Any]) -> Labelling:
    match request:
        case {"device": str(device), "group": str() | None as group, "labels": dict(labels)} if all(
            isinstance(value, str) for value in labels.values()
        ):
            return Labelling(device, group, labels)
    raise SettingsError(
        "a request to label has the string device, the table labels of strings, and group, which is a string or null"
    )
