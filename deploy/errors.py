"""How a command ends when it fails."""

import signal
from typing import Final

FAILED: Final = 1
MISUSED: Final = 2  # the command or its settings cannot be used
DIVERGED: Final = 4
BY_SIGNAL: Final = 128  # and the signal's number


class RunError(RuntimeError):
    """The run cannot go on. The message says why and what to do."""


class SignalledError(RunError):
    """A signal has ended a coordinator or a device in good order: no failure, and no end of its run."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended in good order by {signal.Signals(number).name}")
        self.exit_code = BY_SIGNAL + number  # as a shell has it


def ended_early(reason: str) -> RunError:
    """Of a coordinator or a device that says why."""
    from protofleet.protocol.wire.reasons import DisconnectReason

    what, _, name = reason.partition(": ")
    if what == DisconnectReason.SIGNAL.value and name in signal.Signals.__members__:
        return SignalledError(signal.Signals[name])
    return RunError(reason)


class StoppedError(RunError):
    """The user has ended the run, and so what was to follow it."""
