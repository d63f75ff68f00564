"""The answers whose arrays travel inside their message."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from protofleet.protocol.wire.arrays import Body
from protofleet.protocol.wire.messages import Update


@dataclass(frozen=True, slots=True)
class InlineAnswer:
    """The arrays of an answer that came inside its message, hashed and parsed once."""

    data: bytes
    name: bytes
    arrays: Body
    first: bool  # False if the same answer has brought the arrays before

    @property
    def size(self) -> int:
        return len(self.data)


class InlineAnswers:
    """The reader of inline answers, which recognises an answer that a device sends again."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, str, bytes]] = {}  # device -> the inline answer that it sent last

    def read(self, update: Update, data: bytes) -> InlineAnswer:
        """Return the answer with its arrays; raise Rejected if the arrays cannot be read."""
        name = hashlib.sha256(data).digest()
        answer = (update.round, update.phase, name)
        before, self._last[update.device] = self._last.get(update.device), answer
        return InlineAnswer(data, name, _body(data), answer != before)


def _body(data: bytes) -> Body:
    view = memoryview(bytearray(data))  # the bytes are copied because torch warns about read-only buffers
    return Body(lambda start, stop: view[start:stop], len(data))
