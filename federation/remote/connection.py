"""The connection of an operator to the broker, and the words for what ends it."""

from __future__ import annotations

import json
import logging
import queue
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from protofleet.federation.remote.boot import next_boot
from protofleet.federation.remote.settings import OperatorSettings
from protofleet.protocol.link.clocks import Clock
from protofleet.protocol.link.operators import CommandSender, ReceivedNews
from protofleet.protocol.security.envelope import seals
from protofleet.protocol.security.keys import Identity, Keyring, Keys
from protofleet.protocol.security.operators import OperatorRecord
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.transport.base import Denied, Done, Item
from protofleet.protocol.transport.mqtt import Mqtt
from protofleet.protocol.wire.messages import MOST_ARGS, CommandOutcome, CommandRequest
from protofleet.protocol.wire.reasons import Rejected
from protofleet.protocol.wire.topics import Topics
from protofleet.runtime.command.errors import RunError

UNHEARD: Final = "no client has subscribed to the topic"

log = logging.getLogger("protofleet")


class OperatorConnection:
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
        self.nobody = f"no coordinator answers on {topics.commands_of(own.name)} at {settings.broker}"

    def connect(self) -> None:
        self._transport.connect()

    def close(self) -> None:
        self._transport.close()

    def send(self, command: CommandRequest) -> None:
        self._link.send(command)

    def put(self, item: Done) -> None:
        """Add an item for the thread that calls `next`. Any thread may call this method."""
        self._items.put(item)

    def next(self, seconds: float) -> Item | None:
        """Return the next event of the connection; None if there is none within this time."""
        try:
            return self._items.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return None

    def read(self, topic: str, frame: bytes) -> CommandOutcome | ReceivedNews | None:
        """Return the result or the news in a frame; None if it is a duplicate or has a fault."""
        try:
            return self._link.arrived(topic, frame)
        except Rejected as fault:
            log.warning("rejected a frame on the topic %.100r: %s", topic, fault)
            return None

    def _unheard(self, topic: str) -> None:
        self._items.put(Denied(topic, UNHEARD))


def command_of(request: Mapping[str, Any]) -> CommandRequest:
    """Return the command of a request; raise SettingsError if its arguments are too long."""
    args = {key: value for key, value in request.items() if key not in ("id", "verb")}
    packed = json.dumps(args, ensure_ascii=False).encode()
    if len(packed) > MOST_ARGS:
        raise SettingsError(f"the command has {len(packed):,} bytes; the limit is {MOST_ARGS:,}")
    name = bytes.fromhex(request["id"]) if "id" in request else secrets.token_bytes(16)
    return CommandRequest(name, request["verb"], packed)


def response_of(result: CommandOutcome) -> dict[str, Any]:
    return {**data_in(result), "verdict": result.verdict, "words": result.words}


def data_in(result: CommandOutcome) -> dict[str, Any]:
    try:
        found = json.loads(result.data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise RunError("the data of the result are not a JSON object; is the coordinator of a later version?")
    return found
