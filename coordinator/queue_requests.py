"""Read the requests of operators on the queue, and pass them to the event loop's thread."""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from protofleet.coordinator.control import ID, rounds_in
from protofleet.coordinator.queue.commands import REFUSED, QueueCommand, Submission
from protofleet.coordinator.service_settings import MOST_EXPERIMENT, ServiceSettings
from protofleet.coordinator.spool.index import check_run
from protofleet.coordinator.spool.origin import saved_states
from protofleet.coordinator.start_from import start_from
from protofleet.methods.contract.plan import Plan
from protofleet.methods.plugins.authors import AuthorError
from protofleet.protocol.settings.reader import SettingsError
from protofleet.runtime.control_socket import SECONDS, Handler

SHOWS: Final = ("runs", "show")  # Verbs that change nothing.
VERBS: Final = (*SHOWS, "submit", "pause", "resume", "extend", "stop")
MOST_REQUEST: Final = 8 * MOST_EXPERIMENT  # JSON needs several bytes for some characters of an experiment.

QueueAnswer = Mapping[str, Any]
Execute = Callable[[QueueCommand, Submission | None], QueueAnswer]


def queue_commands(
    settings: ServiceSettings, execute: Execute, put: Callable[[Callable[[], None]], None]
) -> Handler:
    """Return a function that carries out a request and returns its answer; any thread may call it.

    `put` makes the thread of the event loop call a function, and `execute` carries out a command on that thread.
    """

    def handle(user: str, request: Mapping[str, Any]) -> QueueAnswer:
        try:
            command = command_in(request, user)
            submission = submission_in(request, command.run, settings) if command.verb == "submit" else None
        # These are the errors of wrong settings, of plug-ins, and of a library that is not installed.
        except (ValueError, AuthorError, ImportError) as error:
            return {"verdict": REFUSED, "words": str(error)}
        results: queue.SimpleQueue[QueueAnswer] = queue.SimpleQueue()
        put(lambda: results.put(execute(command, submission)))
        try:
            return results.get(timeout=SECONDS)
        except queue.Empty:
            return {"verdict": "unknown", "words": "the coordinator did not answer in time; see its log"}

    return handle


def command_in(request: Mapping[str, Any], user: str) -> QueueCommand:
    match request:
        case {"id": str(name), "verb": str(verb), "run": str(run), "reason": str(reason)} if ID.fullmatch(
            name
        ):
            if verb not in VERBS:
                raise SettingsError(f"there is no command {verb!r}; there are {', '.join(VERBS)}")
            return QueueCommand(bytes.fromhex(name), user, verb, run, reason, rounds_in(request))
    raise SettingsError("a request has the strings id (32 hexadecimal digits), verb, run and reason")


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
            check_run(settings.folder / run.name / "coordinator", run.name, plan.encode().decode())
            # Otherwise the thread of the event loop would import them, and all other runs would wait.
            plan.import_libraries()
            saved = saved_states(settings.folder / run.name / "coordinator")
            made = Submission(text, saved.rounds if saved else run.rounds, after, priority)
            return _with_origin(made, request.get("from", ""), run.name, plan, settings)
    raise SettingsError("a submission has the strings experiment and after, and the whole number priority")
