"""The updates whose arrays are sent inside the message."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from protofleet.protocol.wire.arrays import Body
from protofleet.protocol.wire.messages import Update


@dataclass(frozen=True, slots=True)
class InlineAnswer:
    """The arrays of an update that were sent inside its message, hashed and parsed once."""

    data: bytes
    name: bytes
    arrays: Body
    first: bool  # False if the last inline update of the device was the same

    @property
    def size(self) -> int:
        return len(self.data)


class InlineAnswers:
    """The reader of inline updates, which recognises an update that a device sends again."""

    def __init__(self) -> None:
        # Device -> round, phase and hash of its last inline update.
        self._last: dict[str, tuple[int, str, bytes]] = {}

    def read(self, update: Update, data: bytes) -> InlineAnswer:
        """Return the update with its arrays; raise Rejected if the arrays cannot be read."""
        name = hashlib.sha256(data).digest()
        answer = (update.round, update.phase, name)
        before, self._last[update.device] = self._last.get(update.device), answer
        return InlineAnswer(data, name, _body(data), answer != before)


def _body(data: bytes) -> Body:
    view = memoryview(bytearray(data))  # the bytes are copied because torch warns about read-only buffers
    return Body(lambda start, stop: view[start:stop], len(data))
