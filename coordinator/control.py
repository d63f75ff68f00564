"""Pass the commands of operators to the run, on the thread of the event loop."""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Mapping
from typing import Any

from protofleet.coordinator.moving.place import ENDS, HAND_OVER, MOVED
from protofleet.coordinator.operator_commands import OperatorCommand, OperatorResult
from protofleet.coordinator.queue.commands import DONE, REFUSED
from protofleet.coordinator.request_form import (
    ID,
    NO_ANSWER,
    answer_of_loop,
    demand_known_keys,
    revision_in,
    rounds_in,
)
from protofleet.coordinator.run import Run
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.transport.base import Done, Item, StopRequest
from protofleet.runtime.control_socket import Handler

log = logging.getLogger("protofleet.coordinator")


def commands_of(run: Run, events: queue.SimpleQueue[Item]) -> Handler:
    """Return a function that carries out a command and returns its result; any thread may call it."""

    def handle(user: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        if request.get("run", run.name) != run.name:
            return {"verdict": REFUSED, "words": f"this coordinator conducts only {run.name}"}
        try:
            command = command_in(request, user)
        except SettingsError as error:
            return {"verdict": REFUSED, "words": str(error)}
        if command.verb == HAND_OVER:
            log.info("%s: %s: %s", user, HAND_OVER, ENDS)
            events.put(StopRequest(MOVED))
            return {"verdict": DONE, "words": ENDS}

        def begin(reply: Callable[[OperatorResult], None]) -> None:
            run.operator_commands.execute(command, reply, time.monotonic())

        result = answer_of_loop(lambda call: events.put(Done(call)), begin)
        return {"verdict": result.verdict, "words": result.words, **result.data} if result else NO_ANSWER

    return handle


def command_in(request: Mapping[str, Any], user: str) -> OperatorCommand:
    match request:
        case {"id": str(name), "verb": str(verb), "reason": str(reason)} if ID.fullmatch(name):
            demand_known_keys(request)
            return OperatorCommand(
                bytes.fromhex(name), user, verb, reason, rounds_in(request), revision_in(request)
            )
    raise SettingsError("a request has the strings id (32 hexadecimal digits), verb and reason")
