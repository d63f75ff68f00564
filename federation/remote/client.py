"""Send a command of an operator through the broker, and wait for the coordinator's result."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from protofleet.federation.remote.boot import LOOK_SECONDS, keys_in_use
from protofleet.federation.remote.connection import UNHEARD, OperatorConnection, command_of, response_of
from protofleet.federation.remote.settings import OperatorSettings
from protofleet.protocol.security.operators import SHOWS
from protofleet.protocol.transport.address import BrokerError
from protofleet.protocol.transport.base import Arrived, Connected, Denied, Disconnected
from protofleet.protocol.wire.messages import CommandOutcome, CommandRequest
from protofleet.runtime import credentials
from protofleet.runtime.command.errors import RunError
from protofleet.runtime.control_socket import NobodyListensError, send

WAIT_SECONDS: Final = 30.0  # Seconds that a command waits for its result.
REPEAT_SECONDS: Final = 5.0  # Seconds after which a command without a result is sent again, with the same id.
NOBODY: Final = "nobody"  # Verdict of a command that the process which holds the keys could not send.


def ask_coordinator(
    settings: OperatorSettings, request: Mapping[str, Any], seconds: float = WAIT_SECONDS
) -> dict[str, Any]:
    """Send a command, and return the coordinator's response; raise RunError if no coordinator answers.

    If another process of this operator follows a run, the command goes through its connection.
    """
    request = {"id": secrets.token_hex(16), **request}
    command, folder = command_of(request), Path(settings.enrolled)
    enrolment = credentials.of_operator(settings.enrolled)
    while True:
        with keys_in_use(folder, or_served=True) as are_ours:
            if are_ours:
                exchange = CommandExchange(OperatorConnection(settings, *enrolment))
                try:
                    return response_of(exchange.result_of(command, seconds))
                finally:
                    exchange.close()
        try:
            response = send(folder, {**request, "seconds": seconds}, seconds + REPEAT_SECONDS)
        except NobodyListensError:
            # That process has ended. The same id makes sure that the command has one effect.
            time.sleep(LOOK_SECONDS)
            continue
        if response["verdict"] == NOBODY:
            raise RunError(response["words"])
        return response


def unknown_effect(command: CommandRequest) -> str:
    """Return the words for a command that was received and has no result; "" if it changes nothing."""
    if command.verb in SHOWS:
        return ""
    return "; it is not known whether the command has had an effect: `protofleet runs --log --operator FILE` shows it"


class CommandExchange:
    """One connection of an operator to the broker, for one command."""

    def __init__(self, connection: OperatorConnection) -> None:
        self._connection = connection
        self._was_connected = self._was_heard = False

    def close(self) -> None:
        self._connection.close()

    def result_of(self, command: CommandRequest, seconds: float) -> CommandOutcome:
        """Send the command until its result arrives."""
        self._connection.connect()
        deadline, send_at = time.monotonic() + seconds, float("inf")
        while (now := time.monotonic()) < deadline:
            if now >= send_at:
                self._connection.send(command)
                send_at = now + REPEAT_SECONDS
            match self._connection.next(min(send_at, deadline) - now):
                case None:
                    self._was_heard |= self._was_connected
                case Connected():
                    self._was_connected, send_at = True, now
                case Arrived(topic, frame):
                    result = self._connection.read(topic, frame)
                    if isinstance(result, CommandOutcome) and result.id == command.id:
                        return result
                case Denied() | Disconnected() as fault:
                    self._failed(fault)
        raise RunError(f"{self._connection.nobody}{unknown_effect(command)}")

    def _failed(self, item: Denied | Disconnected) -> None:
        """Raise an error, unless the command may succeed when it is sent again."""
        match item:
            case Denied(_, reason) if reason != UNHEARD:
                raise BrokerError(f"the command cannot be sent: {reason}")
            case Denied() if not self._was_heard:
                raise RunError(f"{self._connection.nobody}, and nothing is queued; start the coordinator")
            case Disconnected(reason, final) if final or not self._was_connected:
                raise BrokerError(reason)
