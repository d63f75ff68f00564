"""Decide what a coordinator that leads does about other processes that have its key or its name.

The rules have no clock and no connection.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from protofleet.coordinator.leading.look import NEVER, PROBE_SECONDS, Rank
from protofleet.protocol.wire.messages import HERE, State

# Seconds from a state that has replaced the birth of this coordinator to its next birth. If several wills arrive in
# this time, one birth replaces all of them.
REPLACED_SECONDS: Final = 1.0
BIRTH_SECONDS: Final = 10.0  # Seconds between two births for this reason.
MOST_CUTS: Final = 5  # Largest number of cuts in CUT_SECONDS.
CUT_SECONDS: Final = 600.0


class Leadership:
    """The rules of a coordinator that leads with an epoch."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.wake_at = NEVER  # Time of the next birth, if another state has replaced the last birth.
        self._answered_at = self._born_at = -NEVER
        self._cuts: deque[float] = deque()

    def answers_probe(self, now: float) -> bool:
        """Return whether to answer a probe now; the sender of a probe that is not answered sends another one."""
        if now < self._answered_at + PROBE_SECONDS:
            return False
        self._answered_at = now
        return True

    def is_asked(self, epoch: int) -> bool:
        """Return whether a request to end is for this coordinator."""
        return epoch == self.rank.epoch

    def state_seen(self, epoch: int, state: State, retained: bool, now: float) -> None:
        """Handle a state that does not outrank this coordinator; it may have replaced the birth at the broker.

        A retained message is older than the birth, which follows each subscription.
        """
        if retained or (state.online and state.reason == HERE):
            return  # The broker does not retain a `here`.
        if not state.online or Rank(epoch, state.who) != self.rank:
            self.wake_at = max(now + REPLACED_SECONDS, self._born_at + BIRTH_SECONDS)

    def gives_birth(self, now: float) -> bool:
        """Return whether to publish the birth again now."""
        if now < self.wake_at:
            return False
        self._born_at, self.wake_at = now, NEVER
        return True

    def ended(self) -> None:
        """Handle the end of the connection: the next connection begins with a birth."""
        self.wake_at = NEVER

    def was_cut(self, now: float) -> bool:
        """Count a connection that another client with this name has ended; return whether there are too many."""
        self._cuts.append(now)
        while self._cuts[0] <= now - CUT_SECONDS:
            self._cuts.popleft()
        return len(self._cuts) > MOST_CUTS
