"""Pass the commands of operators to the run, on the thread of the event loop."""

from __future__ import annotations

import queue
import re
import time
from collections.abc import Mapping
from typing import Any, Final, get_args

from protofleet.coordinator.operator_commands import OperatorCommand, OperatorResult
from protofleet.coordinator.run import Run
from protofleet.protocol.settings.bounds import Rounds
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.transport.base import Done, Item
from protofleet.runtime.control_socket import SECONDS, Handler

ID: Final = re.compile(r"[0-9a-f]{32}")


def commands_of(run: Run, events: queue.SimpleQueue[Item]) -> Handler:
    """Return a function that carries out a command and returns its result; any thread may call it."""

    def handle(user: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        if request.get("run", run.name) != run.name:
            return {"verdict": "refused", "words": f"this coordinator conducts only {run.name}"}
        match request:
            case {"id": str(name), "verb": str(verb), "reason": str(reason)} if ID.fullmatch(name):
                try:
                    command = OperatorCommand(bytes.fromhex(name), user, verb, reason, rounds_in(request))
                except SettingsError as error:
                    return {"verdict": "refused", "words": str(error)}
            case _:
                return {
                    "verdict": "refused",
                    "words": "a request has the strings id (32 hexadecimal digits), verb and reason",
                }
        results: queue.SimpleQueue[OperatorResult] = queue.SimpleQueue()
        events.put(Done(lambda: run.operator_commands.execute(command, results.put, time.monotonic())))
        try:
            result = results.get(timeout=SECONDS)
        except queue.Empty:
            words = (
                "the coordinator did not answer in time, for example because its disk is full; see its log"
            )
            return {"verdict": "unknown", "words": words}
        return {"verdict": result.verdict, "words": result.words, **result.data}

    return handle


def rounds_in(request: Mapping[str, Any]) -> int:
    """Return the number of rounds of the command `extend`, and 0 for any other command."""
    if request["verb"] != "extend":
        return 0
    match request.get("args"):
        case {"rounds": int(rounds)} if not isinstance(rounds, bool):
            bound = get_args(Rounds)[1]
            if rounds in bound:
                return rounds
            raise SettingsError(f"rounds is {rounds}, it must be {bound}")
    raise SettingsError("`extend` needs args with the whole number rounds")
