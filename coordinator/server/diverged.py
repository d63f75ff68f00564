"""The error that ends a run whose training has diverged."""

from protofleet.protocol.user_error import DIVERGED, UserError


class DivergedError(UserError, RuntimeError):
    """The error raised when there is no state left from which the run could go on.

    Its message gives the reason and the attempts that were made.
    """

    exit_code = DIVERGED
