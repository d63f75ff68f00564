"""Whether a refusal, or the message that a run is over, counts: a broker may have retained or queued an old one."""

from __future__ import annotations

from typing import Final

from protofleet.protocol.wire.messages import Refusal

CONFIRM_SECONDS: Final = 2.0  # retained and queued messages have arrived by then
# Without another message, after which a run of an earlier process counts as over.
OVER_SECONDS: Final = 30.0


class RefusalCheck:
    """Whether a refusal counts.

    At once where it names the last hello. One that names none counts when the next hello is refused too: the first
    may be an old one that was queued in a session.
    """

    def __init__(self) -> None:
        self.confirm_at = float("inf")  # when to send the hello that confirms it
        self._confirming = False
        self._last: tuple[int, int] = (0, 0)  # boot and sequence of the last hello

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
        """The coordinator works with this device."""
        self.confirm_at, self._confirming = float("inf"), False


class RunEndCheck:
    """When the message counts that a run is over.

    At once where this process has the run's plan. Not where its end is known already: a device started after that
    waits for the next run. Where an earlier process took part in it and never heard of its end, the message may be an
    old one, so it counts only after a while without another.
    """

    def __init__(self) -> None:
        self._run, self.at = "", float("inf")

    def received(self, run: str, own_run: str, has_plan: bool, ended_run: str, now: float) -> bool:
        """Whether it counts now. `own_run`: that the device took part in; `ended_run`: whose end it knows."""
        if run != own_run or not run:
            return False
        if not has_plan and run != ended_run and self._run != run:
            self._run, self.at = run, now + OVER_SECONDS
        return has_plan

    def contradicted(self) -> None:
        """The coordinator has sent something else."""
        self._run, self.at = "", float("inf")
