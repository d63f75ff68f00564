"""Send a command of an operator through the broker, and wait for the coordinator's result."""

from __future__ import annotations

import json
import logging
import queue
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from protofleet.federation.remote.boot import keys_in_use, next_boot
from protofleet.federation.remote.settings import OperatorSettings
from protofleet.protocol.link.clocks import Clock
from protofleet.protocol.link.operators import CommandSender
from protofleet.protocol.security.envelope import seals
from protofleet.protocol.security.keys import Identity, Keyring, Keys
from protofleet.protocol.security.operators import OperatorRecord
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.transport.address import BrokerError
from protofleet.protocol.transport.base import Arrived, Connected, Denied, Disconnected, Item
from protofleet.protocol.transport.mqtt import Mqtt
from protofleet.protocol.wire.messages import MOST_ARGS, CommandOutcome, CommandRequest
from protofleet.protocol.wire.reasons import Rejected
from protofleet.protocol.wire.topics import Topics
from protofleet.runtime import credentials
from protofleet.runtime.command.errors import RunError

WAIT_SECONDS: Final = 30.0  # Seconds that a command waits for its result.
REPEAT_SECONDS: Final = 5.0  # Seconds after which a command without a result is sent again, with the same id.
UNHEARD: Final = "no client has subscribed to the topic"

log = logging.getLogger("protofleet")


def ask_coordinator(
    settings: OperatorSettings, request: Mapping[str, Any], seconds: float = WAIT_SECONDS
) -> dict[str, Any]:
    """Send a command, and return the coordinator's response; raise RunError if no coordinator answers."""
    args = {key: value for key, value in request.items() if key not in ("id", "verb")}
    packed = json.dumps(args, ensure_ascii=False).encode()
    if len(packed) > MOST_ARGS:
        raise SettingsError(f"the command has {len(packed):,} bytes; the limit is {MOST_ARGS:,}")
    name = bytes.fromhex(request["id"]) if "id" in request else secrets.token_bytes(16)
    command = CommandRequest(name, request["verb"], packed)
    enrolment = credentials.of_operator(settings.enrolled)
    with keys_in_use(Path(settings.enrolled)):
        exchange = CommandExchange(settings, *enrolment)
        try:
            result = exchange.result_of(command, seconds)
        finally:
            exchange.close()
    return {**data_in(result), "verdict": result.verdict, "words": result.words}


def data_in(result: CommandOutcome) -> dict[str, Any]:
    try:
        found = json.loads(result.data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise RunError("the data of the result are not a JSON object; is the coordinator of a later version?")
    return found


class CommandExchange:
    """One connection of an operator to the broker, for one command."""

    def __init__(self, settings: OperatorSettings, own: OperatorRecord, keys: Keys, keyring: Keyring) -> None:
        boot = next_boot(Path(settings.enrolled), int(time.time()), own.serial)
        topics, self._items = Topics(own.federation), queue.SimpleQueue[Item]()
        self._transport = Mqtt(
            f"{own.federation}.{own.name}", settings.broker, self._items,
            subscriptions=[topics.results_of(own.name)], on_unheard=self._unheard,
        )  # fmt: skip
        self._link = CommandSender(
            Identity(own.name, boot, keys), keyring, topics, self._transport, seals(settings.security),
            Clock(since=own.not_before),
        )  # fmt: skip
        self._nobody = f"no coordinator answers on {topics.commands_of(own.name)} at {settings.broker}"
        self._was_connected = self._was_heard = False

    def close(self) -> None:
        self._transport.close()

    def _unheard(self, topic: str) -> None:
        self._items.put(Denied(topic, UNHEARD))

    def result_of(self, command: CommandRequest, seconds: float) -> CommandOutcome:
        """Send the command until its result arrives."""
        self._transport.connect()
        deadline, send_at = time.monotonic() + seconds, float("inf")
        while (now := time.monotonic()) < deadline:
            if now >= send_at:
                self._link.send(command)
                send_at = now + REPEAT_SECONDS
            try:
                item = self._items.get(timeout=max(0.0, min(send_at, deadline) - now))
            except queue.Empty:
                self._was_heard |= self._was_connected
                continue
            match item:
                case Connected():
                    self._was_connected, send_at = True, now
                case Arrived(topic, frame):
                    if (result := self._arrived(topic, frame)) and result.id == command.id:
                        return result
                case Denied() | Disconnected():
                    self._failed(item)
        raise RunError(
            f"{self._nobody}; it is not known whether the command has had an effect: `protofleet runs --log` shows it"
        )

    def _arrived(self, topic: str, frame: bytes) -> CommandOutcome | None:
        try:
            return self._link.arrived(topic, frame)
        except Rejected as fault:
            log.warning("rejected a frame on the topic %.100r: %s", topic, fault)
            return None

    def _failed(self, item: Denied | Disconnected) -> None:
        """Raise an error, unless the command may succeed when it is sent again."""
        match item:
            case Denied(_, reason) if reason != UNHEARD:
                raise BrokerError(f"the command cannot be sent: {reason}")
            case Denied() if not self._was_heard:
                raise RunError(f"{self._nobody}, and nothing is queued; start the coordinator")
            case Disconnected(reason, final) if final or not self._was_connected:
                raise BrokerError(reason)
