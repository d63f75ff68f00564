"""Read the requests of operators on the queue, and pass them to the event loop's thread."""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping
from typing import Any, Final

from protofleet.coordinator.control import ID
from protofleet.coordinator.queue.commands import REFUSED, QueueCommand, Submission
from protofleet.coordinator.queue.labelling import Labelling
from protofleet.coordinator.service_settings import MOST_EXPERIMENT, ServiceSettings
from protofleet.coordinator.spool.index import check_run
from protofleet.methods.plugins.authors import AuthorError
from protofleet.protocol.settings.reader import SettingsError
from protofleet.runtime.control_socket import SECONDS, Handler

SHOWS: Final = ("runs", "show", "labels")  # Verbs that change nothing.
VERBS: Final = (*SHOWS, "submit", "pause", "resume", "stop", "label")
MOST_REQUEST: Final = 8 * MOST_EXPERIMENT  # JSON needs several bytes for some characters of an experiment.

QueueAnswer = Mapping[str, Any]
Execute = Callable[[QueueCommand, Submission | Labelling | None], QueueAnswer]


def queue_commands(
    settings: ServiceSettings, execute: Execute, put: Callable[[Callable[[], None]], None]
) -> Handler:
    """Return a function that carries out a request and returns its answer; any thread may call it.

    `put` makes the thread of the event loop call a function, and `execute` carries out a command on that thread.
    """

    def handle(user: str, request: Mapping[str, Any]) -> QueueAnswer:
        try:
            command = command_in(request, user)
            more: Submission | Labelling | None = None
            if command.verb == "submit":
                more = submission_in(request, command.run, settings)
            elif command.verb == "label":
                more = labelling_in(request)
        except (ValueError, AuthorError) as error:  # These are the errors of wrong settings and of plug-ins.
            return {"verdict": REFUSED, "words": str(error)}
        results: queue.SimpleQueue[QueueAnswer] = queue.SimpleQueue()
        put(lambda: results.put(execute(command, more)))
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
            return QueueCommand(bytes.fromhex(name), user, verb, run, reason)
    raise SettingsError("a request has the strings id (32 hexadecimal digits), verb, run and reason")


def submission_in(request: Mapping[str, Any], name: str, settings: ServiceSettings) -> Submission:
    """Check the experiment of a request; raise an error if the run could not start with it."""
    match request:
        case {"experiment": str(text), "after": str(after), "priority": int(priority)}:
            run = settings.of_run(name, text)
            check_run(settings.folder / run.name / "coordinator", run.name, run.plan().encode().decode())
            return Submission(text, run.rounds, after, priority, run.select, run.policy.quorum)
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
