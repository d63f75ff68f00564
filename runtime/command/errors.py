"""Define the errors of commands."""

import signal

from protofleet.protocol.user_error import BY_SIGNAL, OUTRANKED, UserError


class RunError(UserError, RuntimeError):
    """The error for a run that cannot continue. The message has the reason and advice."""


class OutrankedError(RunError):
    """The error for a coordinator that does not lead the federation, because another one does."""

    exit_code = OUTRANKED


class SteppedDownError(RunError):
    """The error for a coordinator that another one has asked to end. This is not a failure."""

    exit_code = 0


class SignalledError(RunError):
    """The error for a coordinator or a device that a signal has ended in an orderly way.

    This is not a failure, and the run can be continued.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"ended in good order by {signal.Signals(number).name}")
        # The exit code that a shell reports for a command that this signal has ended.
        self.exit_code = BY_SIGNAL + number


def ended_early(reason: str) -> RunError:
    """Return the error for an early end of a coordinator or a device; `reason` is the reason that this party gave."""
    from protofleet.protocol.wire.reasons import DisconnectReason

    what, _, name = reason.partition(": ")
    if what == DisconnectReason.SIGNAL.value and name in signal.Signals.__members__:
        return SignalledError(signal.Signals[name])
    return RunError(reason)


class StoppedError(RunError):
    """The error for a run that the user has ended. The work that would follow the run is not done."""
