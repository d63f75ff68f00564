"""The error that ends a run whose training has diverged."""


class DivergedError(RuntimeError):
    """The error raised when there is no state left from which the run could go on.

    Its message gives the reason and the attempts that were made.
    """
