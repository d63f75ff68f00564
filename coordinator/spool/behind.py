"""A coordinator whose devices have heard a higher epoch, usually because its folder was restored from a backup."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from protofleet.coordinator.spool.epochs import save_epoch
from protofleet.protocol.link.clocks import ahead, days
from protofleet.protocol.settings.reader import SettingsError

T = TypeVar("T")


class BehindError(RuntimeError):
    """The error of a coordinator that has got the proof of a higher epoch."""

    def __init__(self, own: int, proven: int) -> None:
        super().__init__(
            f"this federation has heard a coordinator of epoch {proven}, and this one has epoch {own}: its folder "
            "came back from a backup, or another coordinator has led since. If no other one runs, start this one "
            f"once with `protofleet coordinator FILE --restored --above {proven}`"
        )
        self.proven = proven


def claim_above(epoch: int, runs: Path, federation: str, clock: int) -> None:
    """Store an epoch that an operator has named, so that this coordinator and all later ones claim higher epochs."""
    if far := ahead(epoch, clock):
        raise SettingsError(
            f"--above is {epoch}, which is {days(far)} ahead of this clock; devices ignore an epoch that is more "
            "than a day ahead. Set the clock, or leave out --above: a device proves the epoch that it has heard"
        )
    save_epoch(runs, federation, epoch)


def claim_again(conduct: Callable[[bool], T], restored: bool, runs: Path, federation: str) -> T:
    """Call `conduct`; with --restored, call it again above each epoch that a device has proved.

    The argument of `conduct` is true at the first call with --restored: then the runs of a queue are paused. The
    proved epoch is on the disk before the next claim, so a process that is killed in between claims above it too.
    """
    first = restored
    while True:
        try:
            return conduct(first)
        except BehindError as behind:
            if not restored:
                raise
            save_epoch(runs, federation, behind.proven)
            first = False
