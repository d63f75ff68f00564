"""An answer on its way: it is said again until the coordinator says what became of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from protofleet.edge_client.state.file import Answer
from protofleet.protocol.link.base import Received
from protofleet.protocol.wire.messages import Task, Update

RESEND_SECONDS: Final = 5.0  # before an answer without receipt is said again; doubles up to the longest
LONGEST_RESEND_SECONDS: Final = 60.0


@dataclass
class Outgoing:
    """An answer that waits for its receipt."""

    answer: Answer
    again_at: float
    patience: float = RESEND_SECONDS

    def update(self, device: str) -> Update:
        a = self.answer
        return Update(device, a.round, a.phase, a.examples, bytes.fromhex(a.base), {}, a.metrics)

    def said(self, now: float) -> None:
        self.again_at = now + self.patience
        self.patience = min(2 * self.patience, LONGEST_RESEND_SECONDS)


def question_of(received: Received, task: Task) -> str:
    """The name of what is asked: equal names demand equal answers."""
    parts = f"{received.run}/{task.round}/{task.phase}/{received.object.hex()}"
    return hashlib.sha256(parts.encode()).hexdigest()
