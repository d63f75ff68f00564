"""The end of a coordinator whose devices have heard a higher epoch, usually because its folder is from a backup."""

from __future__ import annotations

from protofleet.runtime.command.errors import OutrankedError


class BehindError(OutrankedError):
    """The error of a coordinator that has got the proof of a higher epoch."""

    def __init__(self, own: int, proven: int) -> None:
        super().__init__(
            f"this federation has heard a coordinator of epoch {proven}, and this one has epoch {own}: its folder "
            "came back from a backup, or another coordinator has led since. If no other one runs, start this one "
            f"once with `protofleet coordinator FILE --restored --above {proven}`"
        )
        self.proven = proven
        self.is_stopped = False  # True if a signal has asked the process to end too.
