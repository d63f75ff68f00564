"""What ends a run that has come to nothing."""


class DivergedError(RuntimeError):
    """There is no state that the run could go on from. The message says since when, and what was tried."""
