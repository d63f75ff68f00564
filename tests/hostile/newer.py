"""The raw device with the forms of version 1.1, which can receive a broadcast without a request."""

from __future__ import annotations

from typing import Any

import paho.mqtt.client as paho

from tests.hostile import wire
from tests.hostile.device import Device

CAN = ["inline", "many", "manifest"]


class Newer(Device):
    """A device that accepts a broadcast of one block without a request, also if the block arrives before the task."""

    def __init__(self, *who: Any, **more: Any) -> None:
        super().__init__(*who, **{**more, "hello": {"can": CAN, **more.get("hello", {})}})
        self._early = b""

    def _asked(self, round: int, phase: str, offer: list[Any] | None) -> None:
        follows = self.heard[-1].fields.get("follows")
        if follows is None or follows[0] in self._objects:
            super()._asked(round, phase, follows or offer)
            return
        name, size, key = follows
        self._task = (round, phase)
        self._coming = ([name, size, size, b"", [], key], {})
        self._block(self._early)

    def _block(self, frame: bytes) -> None:
        if self._coming is None or frame[3:19] != wire.wire_name(self._coming[0])[:16]:
            self._early = frame
        else:
            super()._block(frame)

    def _connected(self, client: paho.Client, data: Any, flags: Any, reason: Any, properties: Any) -> None:
        client.subscribe(f"{self.prefix}bcast/now", qos=1)
        super()._connected(client, data, flags, reason, properties)
