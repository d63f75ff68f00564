"""Remember which devices were in the sums of a run, because the cohort of a later sum depends on them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class PastSum:
    """A sum of a run."""

    round: int
    attempt: int  # the number of times that the round had begun again
    stage: str
    devices: tuple[str, ...]  # devices whose vectors are in the sum, in the order of names


class PastSums:
    """The sums of a run. They are used on the thread of the worker."""

    def __init__(self, sums: Iterable[PastSum] = ()) -> None:
        """Begin with the sums that earlier coordinators of the run have stored."""
        self._sums = {(one.round, one.attempt, one.stage): one for one in sums}

    def note(self, found: PastSum) -> None:
        self._sums[found.round, found.attempt, found.stage] = found

    def before(self, stage: str, round: int, attempt: int) -> tuple[str, ...]:
        """Return the devices of the last sum of a stage before this attempt; () if there is none.

        A replay of the attempt gets the same devices, although a later sum may be known.
        """
        earlier = [
            one
            for one in self._sums.values()
            if one.stage == stage and (one.round, one.attempt) < (round, attempt)
        ]
        return max(earlier).devices if earlier else ()

    def newest(self) -> tuple[PastSum, ...]:
        """Return the last sum of each stage."""
        newest: dict[str, PastSum] = {}
        for one in sorted(self._sums.values()):
            newest[one.stage] = one
        return tuple(newest.values())


def devices_of(sums: Iterable[PastSum]) -> tuple[frozenset[str], ...]:
    """Return the devices of each sum."""
    return tuple(frozenset(one.devices) for one in sums)
