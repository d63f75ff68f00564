"""Pass the commands of operators to the run, on the thread of the event loop."""

from __future__ import annotations

import queue
import re
import time
from collections.abc import Mapping
from typing import Any, Final

from protofleet.coordinator.operator_commands import OperatorCommand, OperatorResult
from protofleet.coordinator.run import Run
from protofleet.protocol.transport.base import Done, Item
from protofleet.runtime.control_socket import SECONDS, Handler

ID: Final = re.compile(r"[0-9a-f]{32}")


def commands_of(run: Run, events: queue.SimpleQueue[Item]) -> Handler:
    """Return a function that carries out a command and returns its result; any thread may call it."""

    def handle(user: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        match request:
            case {"id": str(name), "verb": str(verb), "reason": str(reason)} if ID.fullmatch(name):
                command = OperatorCommand(bytes.fromhex(name), user, verb, reason)
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
