"""A broker that loses the last messages of a run, and repeats refusals that it has kept."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from protofleet.protocol.security.envelope import read_header
from protofleet.protocol.wire.blocks import is_block
from protofleet.protocol.wire.topics import Topics
from tests.simulator.broker import Message

Meddle = Callable[[str, bytes], list[Message]]


@dataclass
class Keeper:
    dice: random.Random
    topics: Topics
    losses: int  # The number of last messages that never arrive.
    keeps: bool  # The broker keeps refusals, and repeats them.
    _kept: dict[str, list[Message]] = field(default_factory=dict)

    def before(self, then: Meddle) -> Meddle:
        """Return a meddler that drops and repeats frames, and passes the rest on to the meddler `then`."""

        def meddle(topic: str, frame: bytes) -> list[Message]:
            if is_block(frame):
                return then(topic, frame)
            header = read_header(frame)[0]
            if self.losses and (
                header.kind == "finished" or (header.kind == "state" and b"finished" in frame)
            ):
                self.losses -= 1
                return []
            if header.kind == "refusal":
                self._kept.setdefault(header.recipient, []).append((topic, frame))
            return [*then(topic, frame), *self._again(header.kind, header.sender)]

        return meddle

    def _again(self, kind: str, sender: str) -> list[Message]:
        """Return a kept refusal for a device that has said hello, in any of its boots."""
        kept = self._kept.get(sender, [])
        if not self.keeps or kind != "hello" or not kept or self.dice.random() < 0.5:
            return []
        return [self.dice.choice(kept)]
