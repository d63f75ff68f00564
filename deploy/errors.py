"""What ends a run before its time."""


class RunError(RuntimeError):
    """The run cannot go on. The message says why and what to do."""
