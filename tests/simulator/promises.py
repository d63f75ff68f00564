"""What the simulator says when something does not hold."""

from __future__ import annotations


class BrokenPromise(BaseException):
    """An invariant does not hold. The words begin with its number in the design.

    No Exception: it comes up in the middle of our own code, which goes on after an error with one peer.
    """


def demand(holds: bool, words: str) -> None:
    if not holds:
        raise BrokenPromise(words)
