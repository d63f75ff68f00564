"""Checks whether a refusal, or the message that a run is over, is an old one that the broker has kept."""

from __future__ import annotations

from typing import Final

from protofleet.protocol.wire.messages import Refusal

CONFIRM_SECONDS: Final = 2.0  # within this time, all retained and queued messages have arrived
# If no other message arrives for so many seconds, the run of an earlier process counts as over.
OVER_SECONDS: Final = 30.0


class RefusalCheck:
    """The check whether a refusal counts.

    A refusal counts at once if it names the last hello. A refusal that names no hello may be an old message from
    the queue of a session, so it counts only if the next hello is refused too.
    """

    def __init__(self) -> None:
        self.confirm_at = float("inf")  # time to send the hello that confirms the refusal
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
    """The check whether the message that a run is over counts.

    The message counts at once if this process has the run's plan. It does not count if the device already knows
    that the run is over: a device that starts after the end waits for the next run. If only an earlier process
    took part in the run, the message may be an old one. Then it counts only after some time without another
    message.
    """

    def __init__(self) -> None:
        self._run, self.at = "", float("inf")

    def received(self, run: str, own_run: str, has_plan: bool, ended_run: str, now: float) -> bool:
        """Return whether the message that a run is over counts now.

        `own_run` is the run that the device took part in. `ended_run` is the run whose end the device knows.
        """
        if run != own_run or not run:
            return False
        if not has_plan and run != ended_run and self._run != run:
            self._run, self.at = run, now + OVER_SECONDS
        return has_plan

    def contradicted(self) -> None:
        """Forget the message that the run is over, because the coordinator has sent another message."""
        self._run, self.at = "", float("inf")
