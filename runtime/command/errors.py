"""Define the exit codes and the errors of commands."""

import signal
from typing import Final

FAILED: Final = 1
MISUSED: Final = 2  # The command or its settings cannot be used.
DIVERGED: Final = 4
BY_SIGNAL: Final = 128  # The number of the signal is added.


class RunError(RuntimeError):
    """The error that the run cannot go on. The message says why and what to do."""


class SignalledError(RunError):
    """The error that a signal has ended a coordinator or a device after an orderly stop.

    It is no failure, and the run is not over.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"ended in good order by {signal.Signals(number).name}")
        self.exit_code = BY_SIGNAL + number  # The exit code that a shell uses.


def ended_early(reason: str) -> RunError:
    """Return the error for the reason that a coordinator or a device gives for its early end."""
    from protofleet.protocol.wire.reasons import DisconnectReason

    what, _, name = reason.partition(": ")
    if what == DisconnectReason.SIGNAL.value and name in signal.Signals.__members__:
        return SignalledError(signal.Signals[name])
    return RunError(reason)


class StoppedError(RunError):
    """The error that the user has ended the run, and with it the work that was to follow."""
