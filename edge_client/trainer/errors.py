"""The errors that end work on a job without an update."""

from __future__ import annotations

from protofleet.protocol.wire.reasons import DisconnectReason


class TrainerDiedError(RuntimeError):
    """An error for work that ended without a result; the job starts again from its last state on the disk."""

    def __init__(self, why: DisconnectReason, message: str) -> None:
        super().__init__(f"{why.value}: {message}")
        self.why, self.message = why, message


class TrainingError(RuntimeError):
    """An error for an unexpected exception in the child process; its text is the traceback of the exception."""
