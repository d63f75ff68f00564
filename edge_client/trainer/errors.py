"""The ways in which work on a job can end without an answer."""

from __future__ import annotations

from protofleet.protocol.wire.reasons import DisconnectReason


class TrainerDiedError(RuntimeError):
    """An error for work that ended in the middle; the job begins again from its durable state."""

    def __init__(self, why: DisconnectReason, message: str) -> None:
        super().__init__(f"{why.value}: {message}")
        self.why, self.message = why, message


class TrainingError(RuntimeError):
    """An error for a failure of the project's code in the other process; the text is its traceback."""
