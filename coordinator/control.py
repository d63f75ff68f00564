"""Pass the commands of operators to the run, on the thread of the event loop."""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Mapping
from typing import Any

from protofleet.coordinator.moving.place import ENDS, HAND_OVER, MOVED, ONLY_HERE
from protofleet.coordinator.operator_commands import OF_A_QUEUE, OperatorCommand, OperatorResult
from protofleet.coordinator.queue.commands import DENIED, DONE, REFUSED, Sender
from protofleet.coordinator.request_form import (
    ID,
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
from protofleet.coordinator.run import Run
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.transport.base import Done, Item, StopRequest

log = logging.getLogger("protofleet.coordinator")


def commands_of(run: Run, events: queue.SimpleQueue[Item]) -> RequestHandler:
    """Return a function that carries out a command and returns its result; any thread may call it."""

    def handle(user: str, request: Mapping[str, Any], sender: Sender | None = None) -> Mapping[str, Any]:
        if names_another_run(request, run.name):
            return {"verdict": REFUSED, "words": f"this coordinator conducts only {run.name}"}
        try:
            command = command_in(request, user, sender)
        except SettingsError as error:
            return {"verdict": REFUSED, "words": str(error)}
        if command.verb == HAND_OVER:
            if words := denial_of(command) or (ONLY_HERE if sender else ""):
                return {"verdict": DENIED if denial_of(command) else REFUSED, "words": words}
            log.info("%s: %s: %s", user, HAND_OVER, ENDS)
            events.put(StopRequest(MOVED))
            return {"verdict": DONE, "words": ENDS}

        def begin(reply: Callable[[OperatorResult], None]) -> None:
            run.operator_commands.execute(command, reply, time.monotonic())

        result = answer_of_loop(lambda call: events.put(Done(call)), begin)
        return {"verdict": result.verdict, "words": result.words, **result.data} if result else NO_ANSWER

    return handle


def names_another_run(request: Mapping[str, Any], run: str) -> bool:
    if request.get("verb") in (*OF_NO_RUN, *OF_A_QUEUE):
        return False
    return bool(request.get("run", run) != run)


def command_in(request: Mapping[str, Any], user: str, sender: Sender | None = None) -> OperatorCommand:
    match request:
        case {"id": str(name), "verb": str(verb), "reason": str(reason)} if ID.fullmatch(name):
            demand_known_keys(request)
            if generation_in(request)[0]:
                raise SettingsError(
                    "only a coordinator of a queue begins a new generation of a run; for this one, see "
                    "`protofleet go-on --help`"
                )
            return OperatorCommand(
                bytes.fromhex(name), user, verb, reason, rounds_in(request), revision_in(request), sender
            )
    raise SettingsError("a request has the strings id (32 hexadecimal digits), verb and reason")
