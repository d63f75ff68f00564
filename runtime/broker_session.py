"""Log the state of a party's connection to its broker, and limit the wait for the first connection."""

from __future__ import annotations

import logging

from protofleet.protocol.transport.address import BrokerError

NEVER = float("inf")


class BrokerSession:
    """The state of one party's connection to its broker; it logs the loss and the return of the connection."""

    def __init__(self, log: logging.Logger) -> None:
        self._log, self._patience = log, NEVER
        self._had_one = False  # True after the broker has accepted a connection of this process.
        self._lost_at = NEVER
        self._reason = ""  # The reason why there is no connection, or "".
        self.wake_at = NEVER

    def give_up_after(self, seconds: float, now: float) -> None:
        """Make `check` raise BrokerError if the broker accepts no connection for this many seconds."""
        self._patience = seconds
        self.wake_at = now + seconds

    def check(self, now: float) -> None:
        if now >= self.wake_at:
            words = self._reason or "no answer from the broker"
            raise BrokerError(f"{words}; gave up after {self._patience:.0f} s")

    def accepted(self) -> None:
        """Record that the broker has accepted a connection; the party may still reject this connection."""
        self._had_one, self.wake_at = True, NEVER

    def stands(self, now: float) -> None:
        """Record that the party uses the connection."""
        if self._lost_at < NEVER:
            self._log.info("connected to the broker again, after %.0f s", now - self._lost_at)
        self._lost_at, self._reason = NEVER, ""

    def lost(self, reason: str, final: bool, now: float) -> str:
        """Log the end of a connection or of an attempt; return the reason why the process has to end, or ""."""
        if reason != self._reason:
            self._log.warning("%s", self._words(reason, now))
        self._reason = reason
        if self._had_one:
            self._lost_at = min(self._lost_at, now)
        if not final:
            return ""
        return f"the broker ended the session: {reason}" if self._had_one else reason

    def _words(self, reason: str, now: float) -> str:
        if self._had_one:
            return f"{'connection to the broker lost' if self._lost_at == NEVER else 'still no connection'}: {reason}"
        for_seconds = f" for {self.wake_at - now:.0f} s" if self.wake_at < NEVER else ""
        return f"{reason}; trying again{for_seconds}"
