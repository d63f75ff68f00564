"""The error that ends a run that has diverged."""


class DivergedError(RuntimeError):
    """The error raised when no state is left from which the run could go on.

    The message names the reason and what was tried.
    """
