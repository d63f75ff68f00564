"""The errors with which work on a job can end without an update."""

from __future__ import annotations

from protofleet.protocol.wire.reasons import DisconnectReason


class TrainerDiedError(RuntimeError):
    """An error for work that ended before its result; the job starts again from its last state on the disk."""

    def __init__(self, why: DisconnectReason, message: str) -> None:
        super().__init__(f"{why.value}: {message}")
        self.why, self.message = why, message


class TrainingError(RuntimeError):
    """An error for an unexpected error in the child process; the text is the traceback."""
