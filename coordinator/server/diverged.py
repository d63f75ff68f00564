"""The error that ends a run that has diverged."""


class DivergedError(RuntimeError):
    """The error that no state is left from which the run could go on.

    The message says since when this is so, and what was tried.
    """
