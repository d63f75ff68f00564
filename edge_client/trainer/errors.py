"""How work on a job can end other than with an answer."""

from __future__ import annotations

from protofleet.protocol.wire.reasons import DisconnectReason


class TrainerDiedError(RuntimeError):
    """What trains has ended in the middle of its work; the job begins again from its durable state."""

    def __init__(self, why: DisconnectReason, message: str) -> None:
        super().__init__(f"{why.value}: {message}")
        self.why, self.message = why, message


class TrainingError(RuntimeError):
    """Our code failed in the other process; the text is its traceback."""
