"""Check whether a refusal or an end-of-run message is an old message that the broker has kept."""

from __future__ import annotations

from typing import Final

from protofleet.protocol.wire.messages import Refusal

# Seconds from the first refusal to the hello that checks it. After this time, all old messages have arrived.
CONFIRM_SECONDS: Final = 2.0
# An end-of-run message may be old. It takes effect if no other message arrives for this number of seconds.
OVER_SECONDS: Final = 30.0


class RefusalCheck:
    """The check whether a refusal takes effect.

    A refusal that names a hello takes effect only if that hello is the last hello of this device. A refusal that
    names no hello may be an old message, which the broker kept for this device. So such a refusal takes effect only
    if the next hello is refused too.
    """

    def __init__(self) -> None:
        # Time from which the next hello checks the refusal; infinity if there is no refusal to check.
        self.confirm_at = float("inf")
        self._confirming = False
        self._last: tuple[int, int] = (0, 0)  # boot and sequence number of the last hello

    def counts(self, refusal: Refusal, now: float) -> bool:
        if refusal.answers:
            return refusal.answers == self._last
        if self.confirm_at == float("inf"):
            self.confirm_at = now + CONFIRM_SECONDS
        return self._confirming

    def hello_sent(self, boot: int, sequence: int, now: float) -> None:
        self._last = (boot, sequence)
        self._confirming |= now >= self.confirm_at

    def contradicted(self) -> None:
        """Forget the refusal, because the coordinator works with this device."""
        self.confirm_at, self._confirming = float("inf"), False


class RunEndCheck:
    """A check of an end-of-run message, which decides whether the message takes effect.

    The message takes effect at once if this process has the run's plan. If only an earlier process of the device took
    part in the run, the message may be old. Then the message takes effect after OVER_SECONDS without another message.
    But if the device has already recorded the end of this run, the message has no effect, and the device waits for
    the next run.
    """

    def __init__(self) -> None:
        self._run, self.at = "", float("inf")

    def received(self, run: str, own_run: str, has_plan: bool, ended_run: str, now: float) -> bool:
        """Handle an end-of-run message for `run`, and return whether the message takes effect now.

        `own_run` is the run in which the device took part. `ended_run` is the last run whose end the device has
        recorded. `has_plan` is true if this process has the plan of the run.
        """
        if run != own_run or not run:
            return False
        if not has_plan and run != ended_run and self._run != run:
            self._run, self.at = run, now + OVER_SECONDS
        return has_plan

    def contradicted(self) -> None:
        """Forget the end-of-run message, because the coordinator has sent another message."""
        self._run, self.at = "", float("inf")
