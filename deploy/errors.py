"""How a command ends when it fails."""

from typing import Final

FAILED: Final = 1
MISUSED: Final = 2  # the command or its settings cannot be used
DIVERGED: Final = 4


class RunError(RuntimeError):
    """The run cannot go on. The message says why and what to do."""


class StoppedError(RunError):
    """The user has ended the run, and so what was to follow it."""
