"""The error of the simulator when a promise does not hold."""

from __future__ import annotations


class BrokenPromise(BaseException):
    """An invariant that does not hold; the words begin with its number in the design.

    It is not an Exception, because it rises in the middle of our own code, which goes on after an error with
    one peer.
    """


def demand(holds: bool, words: str) -> None:
    if not holds:
        raise BrokenPromise(words)
